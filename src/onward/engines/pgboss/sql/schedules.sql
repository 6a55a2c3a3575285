-- What is sent by the clock.
select s.name,
       s.key,                                                                         -- if schedule.key
       '',                                                                            -- unless schedule.key
       s.kind,                                                                        -- if schedule.kind
       'cron',                                                                        -- unless schedule.kind
       s.cron, coalesce(s.timezone, 'UTC'), s.data::text, s.options::text, s.created_on
  from pgboss.schedule s order by 1, 2
