-- The queues there are, with what they are told to do, and about how many messages are in the archive.
select m.queue_name::text, coalesce(q.paused, false), onward.to_micros(q.lease), q.max_attempts, q.backoff,
       onward.to_micros(case when q.name is null then interval $$168 hours$$ else q.keep_completed end), q.keep_completed_count,
       onward.to_micros(q.keep_failed), q.keep_failed_count,
       onward.to_micros(case when q.name is null then interval $$168 hours$$ else q.keep_cancelled end),
       q.pause_reason, q.paused_by, onward.to_micros(q.paused_at), l.rate_count, l.rate_period, l.rate_burst, l.concurrency, p.next_permit_at,
       onward.to_micros(clock_timestamp()),
       (select c.reltuples from pg_catalog.pg_class c where c.oid = to_regclass(format($$pgmq.%I$$, $$a_$$ || lower(m.queue_name))))
  from pgmq.meta m
  left join onward.queue q on q.name = m.queue_name
  left join onward.queue_limit l on l.queue = m.queue_name
  left join onward.rate_permit p on p.key = m.queue_name
 order by m.queue_name collate "C"
