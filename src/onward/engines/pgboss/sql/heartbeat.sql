-- Keep what a worker holds; answers which claims are lost, by their number in the list, and whether because the job was cancelled.
-- What was taken with them, is active and is not named is kept no longer than until now. Of the jobs themselves only those are
-- touched that pg-boss wants to be: a sign of life for all others would write each of them anew.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, in microseconds since 1970, $5 batches
with claims as materialized (
  select c.*, timestamptz 'epoch' + c.started_micros * interval '1 microsecond' as started_on
    from unnest($1::text::text[], $2::text::uuid[], $3::text::integer[], $4::text::bigint[], $5::text::bigint[])
      with ordinality c (name, id, retry_count, started_micros, batch, no)),
named as materialized (
  select c.batch, array_agg(c.id) as ids from claims c group by c.batch),
left_out as (
  insert into onward.lease_batch (worker_id, queue, started_at, lease, lease_until, ids)
  select h.worker_id, h.queue, h.started_at, h.lease, h.lease_until, array_agg(x.id)
    from named n join onward.lease_batch h on h.id = n.batch cross join unnest(h.ids) x (id) cross join lateral (
      select from pgboss.job j
       where j.name = h.queue and j.id = x.id and j.state::text = 'active' and j.started_on = h.started_at
      offset 0) j
   where x.id <> all (n.ids)
   group by h.id),
extended as (
  update onward.lease_batch h set lease_until = pgboss.job_now() + h.lease, ids = n.ids from named n where h.id = n.batch),
touched as (                                                                          -- if job.heartbeat_on
  update pgboss.job j set heartbeat_on = pgboss.job_now()                             -- if job.heartbeat_on
    from claims c                                                                     -- if job.heartbeat_on
   where j.name = c.name and j.id = c.id and j.heartbeat_seconds is not null          -- if job.heartbeat_on
     and j.state::text = 'active' and j.retry_count = c.retry_count and j.started_on = c.started_on),  -- if job.heartbeat_on
seen as (
  select c.*, (select j.state::text from pgboss.job j
                where j.name = c.name and j.id = c.id and j.retry_count = c.retry_count and j.started_on = c.started_on) as state
    from claims c)
select s.no - 1, coalesce(s.state = 'cancelled', false)
  from seen s where s.state is distinct from 'active'
