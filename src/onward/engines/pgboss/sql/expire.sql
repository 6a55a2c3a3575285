-- Fail what has been active for too long, or whose worker no longer touches it: the supervisor's work, and pg-boss's rule. One with
-- attempts left is tried again after its own delay. Whose claim it was does not matter: that claim is lost then.
-- $1 number of the term, $2 leader, $3 how many at most
with late as materialized (
  select j.name, j.id, j.policy, j.singleton_key, j.retry_count, j.retry_limit, j.started_on,
         case when (j.started_on
           + j.expire_seconds * interval '1 s'                                        -- if job.expire_seconds
           + j.expire_in                                                              -- if job.expire_in
           ) < pgboss.job_now() then 'job timed out' else 'job heartbeat timeout' end as message
    from pgboss.queue q join pgboss.job j on j.name = q.name
   where j.state = 'active'
     and (false
       or (j.started_on + j.expire_seconds * interval '1 s') < pgboss.job_now()       -- if job.expire_seconds
       or (j.started_on + j.expire_in) < pgboss.job_now()                             -- if job.expire_in
       or (j.heartbeat_on + j.heartbeat_seconds * interval '1 s') < pgboss.job_now()  -- if job.heartbeat_on
     )
     and exists (select from onward.leader l
                  where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
   limit $3::bigint for update of j skip locked),
lost as materialized (
  select l.*, case when l.wanted = 'retry' and l.policy = 'stately' and exists (
           select from pgboss.job o
            where o.name = l.name and o.state = 'retry' and o.policy = 'stately'
              and coalesce(o.singleton_key, '') = coalesce(l.singleton_key, '')) then 'failed' else l.wanted end as state
    from (select t.*, case when t.retry_count < t.retry_limit then 'retry' else 'failed' end as wanted
            from late t) l),
changed as (
  update pgboss.job j
     set state = l.state::pgboss.job_state,
         completed_on = case when l.state <> 'retry' then pgboss.job_now() end,
         start_after = case
           when l.state <> 'retry' then j.start_after
           when not j.retry_backoff then pgboss.job_now() + j.retry_delay * interval '1 s'
           else pgboss.job_now() + least(
             j.retry_delay_max,                                                       -- if job.retry_delay_max
             greatest(j.retry_delay, 1) * (2 ^ least(16, j.retry_count + 1) / 2 * (1 + random()))) * interval '1 s' end,
         heartbeat_on = null,                                                         -- if job.heartbeat_on
         output = jsonb_build_object('value', jsonb_build_object('message', l.message))
    from lost l
   where j.name = l.name and j.id = l.id and j.state = 'active' and j.started_on = l.started_on
  returning j.*),
-- from dead_letter.sql
select (select count(*) from late)::integer, count(*)::integer, (count(*) filter (where c.state = 'failed'))::integer,
       coalesce(array_agg(distinct c.name) filter (where c.state = 'retry'), '{}')
  from changed c
