-- Jobs counted. What by, and the condition, are put in: see filters.py.
select of, count(*) from (
  select counted as of from pgboss.job j cross join lateral (
    select case
      when j.state = 'active' then 'running'
      when j.state = 'completed' then 'completed'
      when j.state = 'cancelled' then 'cancelled'
      when j.state = 'failed' then coalesce(
        j.output ->> 'end', case when j.retry_count >= j.retry_limit then 'dead_letter' else 'failed' end)
      when j.blocked then 'blocked'                                                   -- if job.blocked
      when j.start_after > pgboss.job_now() then 'scheduled'
      else 'pending' end) s (shown)
   where condition) every group by of
