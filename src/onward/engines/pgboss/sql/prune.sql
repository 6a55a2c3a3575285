-- Remove what pg-boss keeps no longer: ended jobs after their own time, waiting ones after theirs. The supervisor's work. Before
-- pg-boss 11 jobs have no time of their own: there they go to the archive after a week.
-- $1 number of the term, $2 leader, $3 how many at most
with old as materialized (
  select j.name, j.id from pgboss.job j
   where ((j.state < 'active' and j.keep_until < pgboss.job_now())
       or (j.deletion_seconds > 0 and j.completed_on + j.deletion_seconds * interval '1 s' < pgboss.job_now())  -- if job.deletion_seconds
       or (j.completed_on < pgboss.job_now() - interval '7 days')                     -- unless job.deletion_seconds
     )
     and exists (select from onward.leader l
                  where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
   limit $3::bigint for update of j skip locked),
gone as (
  delete from pgboss.job j using old o where j.name = o.name and j.id = o.id returning j.*)
, kept as (                                                                           -- if archive.archived_on
  insert into pgboss.archive (                                                        -- if archive.archived_on
    id, name, priority, data, state, retry_limit, retry_count, retry_delay, retry_backoff, start_after, started_on,  -- if archive.archived_on
    singleton_key, singleton_on, expire_in, created_on, completed_on, keep_until, dead_letter, policy, output, archived_on)  -- if archive.archived_on
  select id, name, priority, data, state, retry_limit, retry_count, retry_delay, retry_backoff, start_after, started_on,  -- if archive.archived_on
         singleton_key, singleton_on, expire_in, created_on, completed_on, keep_until, dead_letter, policy, output, pgboss.job_now()  -- if archive.archived_on
    from gone on conflict do nothing)                                                 -- if archive.archived_on
select name from gone
