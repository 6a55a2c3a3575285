-- All queues, with what pg-boss is told about them, and its schema version: whoever migrates it changes that.
select q.name,
       q.table_name,                    -- if queue.table_name
       q.partition_name,                -- unless queue.table_name
       coalesce(q.policy, 'standard'),
       q.retry_limit, q.retry_delay, q.retry_backoff,
       q.retry_delay_max,               -- if queue.retry_delay_max
       null::integer,                   -- unless queue.retry_delay_max
       q.notify,                        -- if queue.notify
       false,                           -- unless queue.notify
       q.dead_letter,
       (select version from pgboss.version)
  from pgboss.queue q
 order by q.name
