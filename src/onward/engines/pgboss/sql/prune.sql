-- Remove what pg-boss keeps no longer: ended jobs after their own time, waiting ones after theirs. The supervisor's work.
-- $1 number of the term, $2 leader, $3 how many at most
with old as materialized (
  select j.name, j.id from pgboss.job j
   where ((j.deletion_seconds > 0 and j.completed_on + j.deletion_seconds * interval '1 s' < pgboss.job_now())  -- if job.deletion_seconds
       or (j.completed_on < pgboss.job_now() - interval '7 days')                     -- unless job.deletion_seconds
       or (j.state < 'active' and j.keep_until < pgboss.job_now()))
     and exists (select from onward.leader l
                  where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
   limit $3::bigint for update of j skip locked)
delete from pgboss.job j using old o where j.name = o.name and j.id = o.id
returning j.name
