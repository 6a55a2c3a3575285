-- Give one ended job a new life, with all its attempts. The policy of its queue may refuse: its index says so.
-- $1 queue, $2 id
update pgboss.job j
   set state = 'created', retry_count = 0, started_on = null, completed_on = null, output = null,
       start_after = greatest(j.start_after, pgboss.job_now()),
       heartbeat_on = null,                                                           -- if job.heartbeat_on
       upsert_by_key = null,                                                          -- if job.upsert_by_key
       keep_until = greatest(j.keep_until, pgboss.job_now() + (j.keep_until - j.start_after))
 where j.name = $1::text and j.id = $2::uuid and j.state in ('failed', 'cancelled')
returning j.name
