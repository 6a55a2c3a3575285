-- A part of statements in which `changed` has jobs as they ended: a copy of each that failed for good goes to the queue of its dead
-- letters, as pg-boss makes it.
dead as (
  insert into pgboss.job (
    name, data, keep_until, retry_limit,
    retry_backoff, retry_delay, deletion_seconds,                                     -- if job.deletion_seconds
    output,                                                                           -- unless job.source_output
    source_output,                                                                    -- if job.source_output
    priority, singleton_key, expire_seconds, heartbeat_seconds, group_id, group_tier, -- if job.source_name
    start_after, created_on, source_name, source_id, source_created_on, source_retry_count,  -- if job.source_name
    source_root_id,                                                                   -- if job.source_root_id
    trace_context,                                                                    -- if job.trace_context
    state)
  select
    r.dead_letter, r.data,
    pgboss.job_now() + q.retention_seconds * interval '1 s', q.retry_limit,           -- if job.deletion_seconds
    r.keep_until + (r.keep_until - r.start_after), r.retry_limit,                     -- unless job.deletion_seconds
    q.retry_backoff, q.retry_delay, q.deletion_seconds,                               -- if job.deletion_seconds
    r.output,
    r.priority, r.singleton_key, q.expire_seconds, q.heartbeat_seconds, r.group_id, r.group_tier,  -- if job.source_name
    pgboss.job_now(), pgboss.job_now(), r.name, r.id, r.created_on, r.retry_count,    -- if job.source_name
    coalesce(r.source_root_id, r.id),                                                 -- if job.source_root_id
    r.trace_context,                                                                  -- if job.trace_context
    'created'
    from changed r join pgboss.queue q on q.name = r.dead_letter
   where r.state = 'failed' and r.dead_letter <> r.name)
