-- The same as enqueue_plain, if what was seen a moment ago is still so; else nothing is added.
insert into onward.job (id, payload, queue, type, priority, skip_checks)
select $1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, not onward.is_recording()
 where onward.is_cache_valid($3::text, $5::integer)
