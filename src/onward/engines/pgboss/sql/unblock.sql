-- Let jobs go whose parents have all ended well: the supervisor's work, and pg-boss's rule for flows.
-- $1 number of the term, $2 leader, $3 how many parents at most
with parents as materialized (
  select j.name, j.id from pgboss.queue q join pgboss.job j on j.name = q.name
   where j.blocking and j.state = 'completed'
     and exists (select from onward.leader l
                  where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
   order by j.name, j.id limit $3::bigint for update of j skip locked),
fewer as (
  select d.child_name, d.child_id, count(*)::integer as n
    from pgboss.job_dependency d join parents p on p.name = d.parent_name and p.id = d.parent_id
   group by d.child_name, d.child_id),
children as (
  select j.name, j.id, greatest(j.pending_dependencies - f.n, 0) as pending
    from pgboss.job j join fewer f on f.child_name = j.name and f.child_id = j.id
   where j.blocked order by j.name, j.id for update of j),
changed as (
  update pgboss.job j
     set pending_dependencies = c.pending, blocked = c.pending > 0,
         start_after = case when c.pending = 0 then greatest(j.start_after, pgboss.job_now()) else j.start_after end
    from children c where j.name = c.name and j.id = c.id
  returning j.name, j.blocked),
cleared as (
  update pgboss.job j set blocking = false from parents p where j.name = p.name and j.id = p.id returning 1)
select (select count(*) from cleared)::integer, (select count(*) from changed where not blocked)::integer, 0,
       coalesce((select array_agg(distinct name) from changed where not blocked), '{}')
