-- Add jobs of the queues that are kept in one table. Throttling and the queue's policy may refuse some: those are answered. What a job does not say, its queue does. created_on rises by a microsecond within a statement, so that jobs which
-- came together leave in the order in which they came.
-- $1 ids; $2 queues; $3 data; $4 priorities; $5 delays; $6 moments; $7 singleton keys; $8 singleton seconds; $9 offsets;
-- $10 retry limits; $11 delays; $12 backoffs; $13 longest delays; $14 expiry; $15 retention; $16 deletion; $17 dead letters;
-- $18 heartbeats; $19, $20 groups and tiers; $21 where to tell of what is ready, null for nowhere; $22 how many came at this instant
with added as (
insert into pgboss.job_common (
  id, name, data, priority, start_after, created_on, singleton_key, singleton_on, retry_limit, retry_delay, retry_backoff,
  retry_delay_max,                      -- if job.retry_delay_max
  expire_seconds,                       -- if job.expire_seconds
  expire_in,                            -- if job.expire_in
  deletion_seconds,                     -- if job.deletion_seconds
  heartbeat_seconds,                    -- if job.heartbeat_seconds
  group_id,                             -- if job.group_id
  group_tier,                           -- if job.group_tier
  keep_until, policy, dead_letter)
select x.id, q.name, x.data::jsonb, x.priority, s.start_after, pgboss.job_now() + (x.no - 1 + $22::bigint) * interval '1 microsecond',
       x.singleton_key,
       'epoch'::timestamp + interval '1 s' * (x.singleton_seconds::float8 * floor(
         (date_part('epoch', pgboss.job_now()) + coalesce(x.singleton_offset, 0)::float8) / x.singleton_seconds::float8)),
       coalesce(x.retry_limit, q.retry_limit, 2),
       coalesce(x.retry_delay, q.retry_delay, 0),
       coalesce(x.retry_backoff, q.retry_backoff, false),
       coalesce(x.retry_delay_max, q.retry_delay_max),                                -- if job.retry_delay_max
       coalesce(x.expire_seconds, q.expire_seconds, 900),                             -- if job.expire_seconds
       coalesce(x.expire_seconds, q.expire_seconds, 900) * interval '1 s',            -- if job.expire_in
       coalesce(x.deletion_seconds, q.deletion_seconds, 604800),                      -- if job.deletion_seconds
       coalesce(x.heartbeat_seconds, q.heartbeat_seconds),                            -- if job.heartbeat_seconds
       x.group_id,                                                                    -- if job.group_id
       x.group_tier,                                                                  -- if job.group_tier
       s.start_after + coalesce(x.retention_seconds, q.retention_seconds, 1209600) * interval '1 s',  -- if queue.retention_seconds
       s.start_after + coalesce(x.retention_seconds, q.retention_minutes * 60, 1209600) * interval '1 s',  -- unless queue.retention_seconds
       q.policy, coalesce(x.dead_letter, q.dead_letter)
  from unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::integer[], $5::text::bigint[], $6::text::bigint[],
              $7::text::text[], $8::text::integer[], $9::text::integer[], $10::text::integer[], $11::text::integer[],
              $12::text::boolean[], $13::text::integer[], $14::text::integer[], $15::text::integer[], $16::text::integer[],
              $17::text::text[], $18::text::integer[], $19::text::text[], $20::text::text[]) with ordinality
    as x (id, name, data, priority, delay, run_at, singleton_key, singleton_seconds, singleton_offset, retry_limit, retry_delay,
          retry_backoff, retry_delay_max, expire_seconds, retention_seconds, deletion_seconds, dead_letter, heartbeat_seconds,
          group_id, group_tier, no)
  join pgboss.queue q on q.name = x.name
  cross join lateral (select coalesce(
    timestamptz 'epoch' + x.run_at * interval '1 microsecond',
    pgboss.job_now() + coalesce(x.delay, 0) * interval '1 microsecond')) s (start_after)
 order by x.no
on conflict do nothing
returning id, name, start_after),
notified as (
  select pg_notify($21::text, a.name) from (select distinct name from added where start_after <= pgboss.job_now()) a
   where $21::text is not null)
select x.id::text from unnest($1::text::uuid[]) x (id)
 where x.id not in (select id from added) and (select count(*) from notified) >= 0
