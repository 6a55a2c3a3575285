-- Give failed jobs one attempt more, as pg-boss does.
-- $1 queue, $2 ids
update pgboss.job j
   set state = 'retry', retry_limit = j.retry_limit + 1, completed_on = null,
       start_after = greatest(j.start_after, pgboss.job_now())
 where j.name = $1::text and j.id = any ($2::text[]::uuid[]) and j.state = 'failed'
returning j.id::text
