-- What Onward keeps about queues beside pg-boss.
-- -> name, lease, paused, why, by whom, since when, rate, concurrency, next permit and the time now, both in microseconds
select coalesce(q.name, l.queue), q.lease, coalesce(q.paused, false), q.pause_reason, q.paused_by, q.paused_at,
       l.rate_count, l.rate_period, l.rate_burst, l.concurrency, p.next_permit_at,
       (extract(epoch from pgboss.job_now()) * 1000000)::bigint
  from onward.queue q
  full join onward.queue_limit l on l.queue = q.name
  left join onward.rate_permit p on p.key = l.queue
