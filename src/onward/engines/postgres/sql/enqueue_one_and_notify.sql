-- The same as enqueue_one, and have it told: somebody listened a moment ago.
-- $11 the channel, $12 what is told
insert into onward.job (id, payload, queue, type, priority, org_id, start_by, max_attempts, backoff, trace, skip_checks)
select $1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, $6::text, onward.to_timestamp($7::bigint),
       coalesce($8::bigint, 5), $9::text::json, $10::text, not onward.is_recording()
  from (select pg_notify($11::text, $12::text)) t
