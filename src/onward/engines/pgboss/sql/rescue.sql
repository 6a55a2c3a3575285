-- Give back what is held by claims of ours that have run out; a leader's work, so it matches the term. A run that was lost with its
-- worker is given back, as long as that has not happened too often; from then on it costs an attempt, as it does on Node. How often
-- it has happened is written where pg-boss writes what became of a run, which it does only when one has ended, and then all of it.
-- $1 number of the term, $2 leader, $3 losses from which on they count, $4 how many at most
-- index: lease_batch_lease_until (lease_until), the primary key
with gone as materialized (
  select h.queue, h.started_at, h.ids from onward.lease_batch h
   where h.lease_until <= pgboss.job_now()
     and exists (select from onward.leader l
                  where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
   order by h.lease_until for update of h skip locked),
late as materialized (
  select j.*
    from gone g cross join unnest(g.ids) x (id) cross join lateral (
      select j.name, j.id, j.policy, j.singleton_key, j.retry_count, j.retry_limit, j.started_on,
             coalesce(case when jsonb_typeof(j.output #> '{onward,crashes}') = 'number'
                           then least((j.output #>> '{onward,crashes}')::numeric, 1000000)::integer end, 0) + 1 as crashes
        from pgboss.job j
       where j.name = g.queue and j.id = x.id and j.state::text = 'active' and j.started_on = g.started_at
         for update of j skip locked) j
   limit $4::bigint),
lost as materialized (
  select l.*, case when l.wanted = 'retry' and l.policy = 'stately' and exists (
           select from pgboss.job o
            where o.name = l.name and o.state = 'retry' and o.policy = 'stately'
              and coalesce(o.singleton_key, '') = coalesce(l.singleton_key, '')) then 'failed' else l.wanted end as state
    from (select t.*, case when t.crashes < $3::integer or t.retry_count < t.retry_limit then 'retry' else 'failed' end as wanted,
                 t.crashes < $3::integer as released
            from late t) l),
changed as (
  update pgboss.job j
     set state = l.state::pgboss.job_state,
         completed_on = case when l.state <> 'retry' then pgboss.job_now() end,
         started_on = case when l.state = 'retry' and l.released then null else j.started_on end,
         heartbeat_on = null,                                                         -- if job.heartbeat_on
         output = case
           when l.state = 'retry' then jsonb_build_object('onward', jsonb_strip_nulls(jsonb_build_object(
             'crashes', l.crashes, 'before', case when j.output ? 'onward' then j.output #> '{onward,before}' else j.output end)))
           else jsonb_build_object('name', 'WorkerLost', 'message', 'its lease ran out in ' || l.crashes || ' runs: each time its worker died, or was kept from its heartbeat by a handler'
                     || ' that held the interpreter (use executor="process", or a longer lease)') end
    from lost l
   where j.name = l.name and j.id = l.id and j.state = 'active' and j.started_on = l.started_on
  returning j.*),
-- from dead_letter.sql
select (select count(*) from late)::integer, count(*)::integer, (count(*) filter (where c.state = 'failed'))::integer,
       coalesce(array_agg(distinct c.name) filter (where c.state = 'retry'), '{}')
  from changed c
