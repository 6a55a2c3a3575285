-- Take permits of a queue whose limits are locked. Active jobs of all workers count, where the queue has a concurrency.
-- $1 queue, $2 how many, $3 the time in microseconds; null: the database's clock
-- -> how many were taken, microseconds until the next, microseconds within which to start a job, for give_up_permits
select permitted, retry_after, start_within, token::text
  from onward.take_queue_permits($1::text, $2::integer,
    case when exists (select from onward.queue_limit l where l.queue = $1::text and l.concurrency is not null)
         then (select count(*) from pgboss.job_common j where j.name = $1 and j.state = 'active')
         else 0 end, $3::bigint)
