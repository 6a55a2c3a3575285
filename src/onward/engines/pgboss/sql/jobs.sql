-- A part of statements that look at jobs: where they are, and the state that we show. Anywhere is the archive of pg-boss 10, too.
  from pgboss.job j                                                                   -- unless way.anywhere
  from (select id, name, priority, data, state, retry_limit, retry_count, retry_delay, retry_backoff, start_after, started_on,  -- if way.anywhere
               created_on, completed_on, singleton_key, output from pgboss.job        -- if way.anywhere
        union all                                                                     -- if way.anywhere
        select id, name, priority, data, state, retry_limit, retry_count, retry_delay, retry_backoff, start_after, started_on,  -- if way.anywhere
               created_on, completed_on, singleton_key, output from pgboss.archive) j -- if way.anywhere
 cross join lateral (
    select case
      when j.state = 'active' then 'running'
      when j.state = 'completed' then 'completed'
      when j.state = 'cancelled' then 'cancelled'
      when j.state = 'failed' then coalesce(
        j.output ->> 'end', case when j.retry_count >= j.retry_limit then 'dead_letter' else 'failed' end)
      when j.blocked then 'blocked'                                                   -- if job.blocked
      when j.start_after > pgboss.job_now() then 'scheduled'
      else 'pending' end) s (shown)
