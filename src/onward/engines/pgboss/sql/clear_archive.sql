-- Remove what has been in the archive for a month: pg-boss 10 has one.
-- $1 number of the term, $2 leader
delete from pgboss.archive a
 where a.archived_on < pgboss.job_now() - interval '30 days'
   and exists (select from onward.leader l
                where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
