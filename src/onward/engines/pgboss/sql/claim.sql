-- Take jobs of queues that are kept in one table, so many of each, as pg-boss does; and beside it, write down who holds them until
-- when, and forget what was held by claims of which all has ended.
-- The rows that were locked are changed by where they lie, and by nothing else: so there is one way to do it, whatever the planner
-- believes of the queue. Joined, and with statistics from a moment when the queue was empty, it goes through all of the queue for
-- each job.
-- one_per_key is for the policies singleton and stately: of each key one at a time is active; who takes the same key at the same
-- moment meets the index that holds the policy, and tries again. strict_fifo is for key_strict_fifo: of each key the oldest, and none
-- while one of the key is active, waits to be tried again, or has failed.
-- No more is taken than so many bytes of data, or one job: of each queue the first before the second of any. What is compressed is
-- counted eightfold, since to know its size it would have to be read. The rest is unlocked when the statement ends.
-- $1 queues, $2 how many of each, $3 leases, $4 worker, $5 batches that have ended, $6 by how many microseconds this claim is later
-- than the clock says, $7 bytes, $8 whether the caller has permits of the queues; without, those with limits are left out, and paused ones
-- are at any rate
-- index: job_i11 (name, priority desc, created_on, start_after), before it job_i5 (name, start_after);
--        job_i10 (name, singleton_key, state desc, created_on, id), job_i8 (name, singleton_key)
with wanted as materialized (
  select * from unnest($1::text[], $2::bigint[], $3::interval[]) with ordinality w (name, count, lease, no)
   where not exists (select from onward.queue q where q.name = w.name and q.paused)
     and ($8::boolean or not exists (select from onward.queue_limit l where l.queue = w.name))),
heads as materialized (                                                               -- if variant.strict_fifo
  select distinct on (h.name, h.singleton_key) h.name, h.id                           -- if variant.strict_fifo
    from pgboss.job_common h                                                          -- if variant.strict_fifo
   where h.name = any ($1::text[]) and h.state < 'active' and h.policy = 'key_strict_fifo'  -- if variant.strict_fifo
     and h.start_after <= pgboss.job_now()                                            -- if variant.strict_fifo
     and not h.blocked                                                                -- if variant.strict_fifo if job.blocked
   order by h.name, h.singleton_key, h.state desc, h.created_on, h.id),               -- if variant.strict_fifo
found as materialized (
  select n.*
    from wanted w cross join lateral (
      select j.ctid as tid, w.no,
             coalesce(pg_column_size(j.data), 0) * case when pg_column_compression(j.data) is null then 1 else 8 end::bigint as size
             , j.name, j.id, j.singleton_key, j.priority, j.created_on                -- if variant.one_per_key
        from pgboss.job_common j
       where j.name = w.name and j.state < 'active'
         and j.start_after <= pgboss.job_now()                                        -- unless variant.strict_fifo
         and not j.blocked                                                            -- if job.blocked unless variant.strict_fifo
         and not exists (select from pgboss.job_common a                              -- if variant.one_per_key
                          where a.name = j.name and a.state = 'active' and a.policy in ('singleton', 'stately')  -- if variant.one_per_key
                            and coalesce(a.singleton_key, '') = coalesce(j.singleton_key, ''))  -- if variant.one_per_key
         and j.id = any (array (select h.id from heads h))                            -- if variant.strict_fifo
         and not exists (select from pgboss.job_common b                              -- if variant.strict_fifo
                          where b.name = j.name and b.singleton_key = j.singleton_key -- if variant.strict_fifo
                            and b.policy = 'key_strict_fifo' and b.state in ('active', 'retry', 'failed') and b.id <> j.id)  -- if variant.strict_fifo
       order by j.priority desc, j.created_on
                , j.id                                                                -- unless index.fetch_order
       limit w.count for update of j skip locked) n),
fitting as materialized (
  select f.* from found f
   where (select coalesce(sum(size), 0) from found) <= $7::bigint
      or f.tid = any (array (
           select c.tid
             from (select r.tid, r.size, sum(r.size) over (order by r.rank, r.no) as upto
                     from (select tid, no, size, row_number() over (partition by no) as rank from found) r) c
            where c.upto <= $7::bigint or c.upto = c.size))),
next as materialized (
  select distinct on (f.name, coalesce(f.singleton_key, '')) f.tid from fitting f     -- if variant.one_per_key
   order by f.name, coalesce(f.singleton_key, ''), f.priority desc, f.created_on, f.id),  -- if variant.one_per_key
  select tid from fitting),                                                           -- unless variant.one_per_key
taken as (
  update pgboss.job_common j
     set state = 'active', started_on = pgboss.job_now() + $6::bigint * interval '1 microsecond',
         heartbeat_on = pgboss.job_now(),                                             -- if job.heartbeat_on
         retry_count = j.retry_count + (j.started_on is not null)::integer
   where j.ctid = any (array (select tid from next))
  returning j.name, j.id, j.data, j.retry_count, j.retry_limit, j.started_on, j.priority, j.start_after, j.retry_delay,
            j.retry_backoff,
            j.retry_delay_max,                                                        -- if job.retry_delay_max
            j.group_id,                                                               -- if job.group_id
            j.heartbeat_seconds,                                                      -- if job.heartbeat_on
            j.output, j.created_on, j.ctid as row_ctid),
forgotten as (
  delete from onward.lease_batch where id = any ($5::bigint[])),
leased as (
  insert into onward.lease_batch (worker_id, queue, started_at, lease, lease_until, ids)
  select $4::text, t.name, min(t.started_on), w.lease, pgboss.job_now() + w.lease, array_agg(t.id)
    from taken t join wanted w on w.name = t.name group by t.name, w.lease
  returning id, queue)
select t.name, t.id::text, t.data::text, t.retry_count, t.retry_limit,
       (date_part('epoch', t.started_on) * 1000000)::bigint, h.id, t.row_ctid::text, t.priority,
       case when isfinite(t.start_after) then date_part('epoch', t.started_on - t.start_after) else 0 end, t.retry_delay, t.retry_backoff,
       t.retry_delay_max,                                                             -- if job.retry_delay_max
       null::integer,                                                                 -- unless job.retry_delay_max
       t.group_id,                                                                    -- if job.group_id
       null::text,                                                                    -- unless job.group_id
       case when jsonb_typeof(t.output #> '{onward,crashes}') = 'number'
            then least((t.output #>> '{onward,crashes}')::numeric, 1000000)::integer end,
       t.heartbeat_seconds,                                                           -- if job.heartbeat_on
       null::integer,                                                                 -- unless job.heartbeat_on
       (select count(*) from found) > (select count(*) from fitting)
  from taken t join leased h on h.queue = t.name
 order by t.priority desc, t.created_on, t.id
