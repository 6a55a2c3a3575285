-- Keep a schedule aside until it is resumed.
-- $1 queue, $2 key, $3 cron expression, $4 time zone, $5 data, $6 options
insert into onward.paused_schedule (queue, key, cron, timezone, data, options)
values ($1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text::jsonb)
on conflict (queue, key) do update
   set cron = excluded.cron, timezone = excluded.timezone, data = excluded.data, options = excluded.options
