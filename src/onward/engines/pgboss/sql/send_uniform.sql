-- Add jobs of one queue that differ in nothing but their data. Like send.sql otherwise.
-- $1 ids; $2 data, as one JSON array; $3 queue; $4 priority; $5 delay; $6 moment; $7 retry limit; $8 delay; $9 backoff;
-- $10 longest delay; $11 group; $12 where to tell of what is ready, null for nowhere; $13 how many came at this instant
with added as (
insert into pgboss.job_common (
  id, name, data, priority, start_after, created_on, retry_limit, retry_delay, retry_backoff,
  retry_delay_max,                      -- if job.retry_delay_max
  expire_seconds,                       -- if job.expire_seconds
  expire_in,                            -- if job.expire_in
  deletion_seconds,                     -- if job.deletion_seconds
  heartbeat_seconds,                    -- if job.heartbeat_seconds
  group_id,                             -- if job.group_id
  keep_until, policy, dead_letter)
select x.id, q.name, x.data, $4::integer, s.start_after, pgboss.job_now() + (x.no - 1 + $13::bigint) * interval '1 microsecond',
       coalesce($7::integer, q.retry_limit, 2),
       coalesce($8::integer, q.retry_delay, 0),
       coalesce($9::boolean, q.retry_backoff, false),
       coalesce($10::integer, q.retry_delay_max),                                     -- if job.retry_delay_max
       coalesce(q.expire_seconds, 900),                                               -- if job.expire_seconds
       coalesce(q.expire_seconds, 900) * interval '1 s',                              -- if job.expire_in
       coalesce(q.deletion_seconds, 604800),                                          -- if job.deletion_seconds
       q.heartbeat_seconds,                                                           -- if job.heartbeat_seconds
       $11::text,                                                                     -- if job.group_id
       s.start_after + coalesce(q.retention_seconds, 1209600) * interval '1 s',       -- if queue.retention_seconds
       s.start_after + coalesce(q.retention_minutes * 60, 1209600) * interval '1 s',  -- unless queue.retention_seconds
       q.policy, q.dead_letter
  from pgboss.queue q
  cross join (select coalesce(
    timestamptz 'epoch' + $6::bigint * interval '1 microsecond',
    pgboss.job_now() + coalesce($5::bigint, 0) * interval '1 microsecond')) s (start_after)
  cross join rows from (unnest($1::text::uuid[]), jsonb_array_elements($2::text::jsonb)) with ordinality x (id, data, no)
 where q.name = $3::text
on conflict do nothing
returning id, start_after),
notified as (
  select pg_notify($12::text, $3::text) from (select from added where start_after <= pgboss.job_now() limit 1) a
   where $12::text is not null)
select x.id::text from unnest($1::text::uuid[]) x (id)
 where x.id not in (select id from added) and (select count(*) from notified) >= 0
