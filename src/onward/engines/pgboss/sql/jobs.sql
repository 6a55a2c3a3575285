-- A part of statements that look at jobs: where they are, and the status that we show. With the archive of pg-boss 10, if there is one.
  from pgboss.job j                                                                   -- unless variant.with_archive
  from (select id, name, priority, data, state, retry_limit, retry_count, retry_delay, retry_backoff, start_after, started_on,  -- if variant.with_archive
               created_on, completed_on, singleton_key, output from pgboss.job        -- if variant.with_archive
        union all                                                                     -- if variant.with_archive
        select id, name, priority, data, state, retry_limit, retry_count, retry_delay, retry_backoff, start_after, started_on,  -- if variant.with_archive
               created_on, completed_on, singleton_key, output from pgboss.archive) j -- if variant.with_archive
 cross join lateral (
    select case
      when j.state = 'active' then 'running'
      when j.state = 'completed' then 'completed'
      when j.state = 'cancelled' then 'cancelled'
      when j.state = 'failed' then coalesce(
        j.output ->> 'end', case when j.retry_count >= j.retry_limit then 'dead_letter' else 'failed' end)
      when j.blocked then 'blocked'                                                   -- if job.blocked
      when j.start_after > pgboss.job_now() then 'scheduled'
      else 'pending' end) s (status)
