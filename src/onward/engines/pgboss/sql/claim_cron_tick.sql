-- Be the one who looks at the schedules, once in a while: whoever moves this moment is, Node or not. Answers the time then.
-- $1 number of the term, $2 leader, $3 how long a while is
update pgboss.version v set cron_on = pgboss.job_now()
 where (v.cron_on is null or v.cron_on <= pgboss.job_now() - $3::interval)
   and exists (select from onward.leader l
                where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
returning v.cron_on
