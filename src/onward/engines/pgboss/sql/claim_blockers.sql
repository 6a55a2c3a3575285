-- Sessions that let nobody claim: they hold a lock that claims need, for longer than a change of settings takes.
-- $1 how long their transaction must have been open, in microseconds; one whose age we may not see counts as old
-- -> the session, its user, its state, seconds that its transaction has been open, the table, its last statement
with needed as (
  select 'pgboss.queue'::regclass::oid as relation, false as is_written
  union all
  select 'onward.lease_batch'::regclass, true
  union all
  select t.relid, true from pg_partition_tree('pgboss.job') t)
select l.pid::text, coalesce(a.usename, '?'), coalesce(a.state, '?'),
       extract(epoch from clock_timestamp() - a.xact_start)::float8, l.relation::regclass::text, left(a.query, 80)
  from pg_locks l
  join needed n on n.relation = l.relation
   and (l.mode = 'AccessExclusiveLock' or n.is_written and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))
  join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.granted and l.pid <> pg_backend_pid()
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
   and coalesce(a.xact_start, '-infinity') < clock_timestamp() - $1::bigint * interval '1 microsecond'
 order by a.xact_start nulls last
