-- Have jobs sent by the clock. Whoever supervises sends them: any Node instance, or a worker of ours that was asked to.
-- $1 queue, $2 key, $3 cron expression, $4 time zone, $5 data, $6 options
insert into pgboss.schedule (
  key,                                                                                -- if schedule.key
  kind,                                                                               -- if schedule.kind
  name, cron, timezone, data, options, created_on, updated_on)
select
  x.key,                                                                              -- if schedule.key
  'cron',                                                                             -- if schedule.kind
  x.name, x.cron, x.timezone, x.data::jsonb, x.options::jsonb, pgboss.job_now(), pgboss.job_now()
  from (values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text)) x (name, key, cron, timezone, data, options)
on conflict (name
             , key                                                                    -- if schedule.key
            ) do update
   set cron = excluded.cron, timezone = excluded.timezone, data = excluded.data, options = excluded.options,
       kind = excluded.kind,                                                          -- if schedule.kind
       updated_on = excluded.updated_on
