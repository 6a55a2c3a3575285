-- Take jobs of queues that are kept in one table, so many of each. The rows that were locked are changed by where they lie, and by
-- nothing else: so there is one way to do it, whatever the planner believes of the queue. Joined, and with statistics from a moment
-- when the queue was empty, it goes through all of the queue for each job.
-- Who holds a job, and until when, is in its output: pg-boss writes that only when a run has ended, and then all of it.
-- $1 queues, $2 how many of each, $3 worker and claim, $4 leases
-- index: job_i11 (name, priority desc, created_on, start_after), before it job_i5 (name, start_after)
with wanted as materialized (
  select w.name, w.count, jsonb_build_object('onward', $3::jsonb || jsonb_build_object(
         'lease', extract(epoch from w.lease), 'until', extract(epoch from pgboss.job_now() + w.lease))) as hold
    from unnest($1::text[], $2::bigint[], $4::interval[]) w (name, count, lease)),
next as materialized (
  select n.tid
    from wanted w cross join lateral (
      select j.ctid as tid from pgboss.job_common j
       where j.name = w.name and j.state < 'active' and j.start_after <= pgboss.job_now()
         and not j.blocked                                                            -- if job.blocked
       order by j.priority desc, j.created_on
                , j.id                                                                -- unless index.fetch_order
       limit w.count for update of j skip locked) n),
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
