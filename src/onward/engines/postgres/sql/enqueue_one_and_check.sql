-- The same as enqueue_one, if what was seen a moment ago is still so; else nothing is added.
insert into onward.job (id, payload, queue, type, priority, org_id, start_by, max_attempts, backoff, trace, skip_checks)
select $1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, $6::text, onward.to_timestamp($7::bigint),
       coalesce($8::bigint, 5), $9::text::json, $10::text, not onward.is_recording()
 where onward.is_cache_valid($3::text, $5::integer)
