-- Read the store's time, as the leader; no row: another worker leads.
-- $1 number of the term, $2 leader
select pgboss.job_now() where exists (
  select from onward.leader l where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
