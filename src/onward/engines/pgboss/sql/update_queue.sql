-- Change what pg-boss is told about a queue; what is not given stays, and null where that means something is given as such.
-- $1 name, $2 options
update pgboss.queue q
   set retry_limit = coalesce((o.options ->> 'retryLimit')::integer, q.retry_limit),
       retry_delay = coalesce((o.options ->> 'retryDelay')::integer, q.retry_delay),
       retry_backoff = coalesce((o.options ->> 'retryBackoff')::boolean, q.retry_backoff),
       retry_delay_max = case when o.options ? 'retryDelayMax' then (o.options ->> 'retryDelayMax')::integer else q.retry_delay_max end,  -- if queue.retry_delay_max
       expire_seconds = coalesce((o.options ->> 'expireInSeconds')::integer, q.expire_seconds),
       retention_seconds = coalesce((o.options ->> 'retentionSeconds')::integer, q.retention_seconds),  -- if queue.retention_seconds
       retention_minutes = coalesce((o.options ->> 'retentionSeconds')::integer / 60, q.retention_minutes),  -- unless queue.retention_seconds
       deletion_seconds = coalesce((o.options ->> 'deleteAfterSeconds')::integer, q.deletion_seconds),  -- if queue.deletion_seconds
       heartbeat_seconds = case when o.options ? 'heartbeatSeconds' then (o.options ->> 'heartbeatSeconds')::integer else q.heartbeat_seconds end,  -- if queue.heartbeat_seconds
       warning_queued = coalesce((o.options ->> 'warningQueueSize')::integer, q.warning_queued),  -- if queue.warning_queued
       notify = coalesce((o.options ->> 'notify')::boolean, q.notify),                -- if queue.notify
       dead_letter = case when o.options ? 'deadLetter' then o.options ->> 'deadLetter' else q.dead_letter end,
       updated_on = pgboss.job_now()
  from (select $2::text::jsonb) o (options)
 where q.name = $1::text
returning q.name
