-- How many jobs of each queue are in which state, and since when the one waits that has waited longest.
-- $1 queues
select j.name, s.shown, count(*), min(j.start_after) filter (where s.shown = 'pending')
  from pgboss.job j cross join lateral (
    select case
      when j.state = 'active' then 'running'
      when j.state = 'completed' then 'completed'
      when j.state = 'cancelled' then 'cancelled'
      when j.state = 'failed' then coalesce(
        j.output ->> 'end', case when j.retry_count >= j.retry_limit then 'dead_letter' else 'failed' end)
      when j.blocked then 'blocked'                                                   -- if job.blocked
      when j.start_after > pgboss.job_now() then 'scheduled'
      else 'pending' end) s (shown)
 where j.name = any ($1::text[])
 group by 1, 2
