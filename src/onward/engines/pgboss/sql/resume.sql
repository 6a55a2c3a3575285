-- Let cancelled jobs wait again, as pg-boss does.
-- $1 queue, $2 ids
update pgboss.job j
   set state = 'created', completed_on = null, output = null,
       upsert_by_key = null,                                                          -- if job.upsert_by_key
       start_after = greatest(j.start_after, pgboss.job_now())
 where j.name = $1::text and j.id = any ($2::text[]::uuid[]) and j.state = 'cancelled'
returning j.id::text
