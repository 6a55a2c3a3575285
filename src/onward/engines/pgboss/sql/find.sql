-- Jobs, all that we show of them, in the order that rows.job_of reads it. The condition is put behind it: see filters.py.
select j.id::text, j.name, j.data::text, s.status, j.priority, j.retry_limit, j.retry_count, j.retry_delay, j.retry_backoff,
       j.retry_delay_max,                                                             -- if job.retry_delay_max
       null::integer,                                                                 -- unless job.retry_delay_max
       case when isfinite(j.start_after) then j.start_after end, j.created_on, j.started_on, j.completed_on, j.singleton_key,
       j.group_id,                                                                    -- if job.group_id
       null::text,                                                                    -- unless job.group_id
       j.output::text, j.state::text,
       case when j.state = 'active' then (
         select h.worker_id from onward.lease_batch h where h.queue = j.name and h.started_at = j.started_on and j.id = any (h.ids) limit 1) end
-- from jobs.sql
