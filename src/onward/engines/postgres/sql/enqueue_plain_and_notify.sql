-- The same as enqueue_plain, and have it told: somebody listened a moment ago.
-- $6 the channel, $7 what is told
insert into onward.job (id, payload, queue, type, priority, skip_checks)
select $1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, not onward.is_recording()
  from (select pg_notify($6::text, $7::text)) t
