-- Read the paused schedules: the rows that pg-boss's table gets back when they are resumed.
select p.queue, p.key, p.kind, p.cron, p.timezone, p.data::text, p.options::text, null from onward.paused_schedule p order by 1, 2
