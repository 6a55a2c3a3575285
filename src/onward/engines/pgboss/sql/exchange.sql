-- One round trip, and one commit: runs that have ended well are recorded as by complete.sql, and jobs are taken as by claim.sql, both
-- in one table. Claims that were lost come first, with nothing in the columns that only a job has.
-- $1 to $6 as in complete.sql, $7 to $10 as $1 to $4 in claim.sql
with ended as materialized (
  select * from unnest($1::text::text[], $2::text::uuid[], $3::text::integer[], $4::text::bigint[], $5::text::text[], $6::text::text[])
    e (name, id, retry_count, began, claim, output)),
done as (
  update pgboss.job_common j
     set state = 'completed', completed_on = pgboss.job_now(), output = e.output::jsonb
    from ended e
   where j.name = e.name and j.id = e.id
     and j.state::text = 'active' and j.retry_count = e.retry_count
     and j.started_on = timestamptz 'epoch' + e.began * interval '1 microsecond'
     and j.output #>> '{onward,claim}' = e.claim
  returning j.id),
wanted as materialized (
  select w.name, w.count, jsonb_build_object('onward', $9::jsonb || jsonb_build_object(
         'lease', extract(epoch from w.lease), 'until', extract(epoch from pgboss.job_now() + w.lease))) as hold
    from unnest($7::text[], $8::bigint[], $10::interval[]) w (name, count, lease)),
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
select e.name, e.id::text, e.claim, e.retry_count, null::integer, e.began, null::integer, null::float8, null::integer, null::boolean,
       null::integer, null::text, null::integer, null::float8
  from ended e where e.id not in (select id from done)
union all
select t.name, t.id::text, t.data::text, t.retry_count, t.retry_limit,
       (date_part('epoch', t.started_on) * 1000000)::bigint, t.priority, date_part('epoch', t.started_on - t.start_after),
       t.retry_delay, t.retry_backoff,
       t.retry_delay_max,                                                             -- if job.retry_delay_max
       null::integer,                                                                 -- unless job.retry_delay_max
       t.group_id,                                                                    -- if job.group_id
       null::text,                                                                    -- unless job.group_id
       (t.output #>> '{onward,crashes}')::integer
       , date_part('epoch', t.created_on)
  from taken t
 order by 7 desc nulls first, 14, 2
