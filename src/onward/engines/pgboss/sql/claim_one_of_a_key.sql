-- Take jobs of queues with the policies singleton and stately: of each key one at a time is active. Like claim.sql otherwise. Who
-- takes the same key at the same moment meets the index that holds the policy, and tries again.
-- $1 queues, $2 how many of each, $3 worker and claim, $4 leases
with wanted as materialized (
  select w.name, w.count, jsonb_build_object('onward', $3::jsonb || jsonb_build_object(
         'lease', extract(epoch from w.lease), 'until', extract(epoch from pgboss.job_now() + w.lease))) as hold
    from unnest($1::text[], $2::bigint[], $4::interval[]) w (name, count, lease)),
found as materialized (
  select n.*
    from wanted w cross join lateral (
      select j.ctid as tid, j.name, j.id, j.singleton_key, j.priority, j.created_on from pgboss.job_common j
       where j.name = w.name and j.state < 'active' and j.start_after <= pgboss.job_now()
         and not j.blocked                                                            -- if job.blocked
         and not exists (select from pgboss.job_common a
                          where a.name = j.name and a.state = 'active' and a.policy in ('singleton', 'stately')
                            and coalesce(a.singleton_key, '') = coalesce(j.singleton_key, ''))
       order by j.priority desc, j.created_on, j.id
       limit w.count for update of j skip locked) n),
next as materialized (
  select distinct on (f.name, coalesce(f.singleton_key, '')) f.tid from found f
   order by f.name, coalesce(f.singleton_key, ''), f.priority desc, f.created_on, f.id),
taken as (
  update pgboss.job_common j
     set state = 'active', started_on = pgboss.job_now(),
         heartbeat_on = pgboss.job_now(),                                             -- if job.heartbeat_on
         retry_count = j.retry_count + (j.started_on is not null)::integer,
         output = (select case
           when j.output is null then w.hold
           when j.output ? 'onward' then jsonb_build_object('onward', (j.output -> 'onward') || (w.hold -> 'onward'))
           else jsonb_build_object('onward', (w.hold -> 'onward') || jsonb_build_object('before', j.output)) end
           from wanted w where w.name = j.name)
   where j.ctid = any (array (select tid from next))
  returning j.name, j.id, j.data, j.retry_count, j.retry_limit, j.started_on, j.priority, j.start_after, j.retry_delay,
            j.retry_backoff,
            j.retry_delay_max,                                                        -- if job.retry_delay_max
            j.group_id,                                                               -- if job.group_id
            j.output, j.created_on)
select t.name, t.id::text, t.data::text, t.retry_count, t.retry_limit,
       (date_part('epoch', t.started_on) * 1000000)::bigint, t.priority, date_part('epoch', t.started_on - t.start_after),
       t.retry_delay, t.retry_backoff,
       t.retry_delay_max,                                                             -- if job.retry_delay_max
       null::integer,                                                                 -- unless job.retry_delay_max
       t.group_id,                                                                    -- if job.group_id
       null::text,                                                                    -- unless job.group_id
       (t.output #>> '{onward,crashes}')::integer
  from taken t order by t.priority desc, t.created_on, t.id
