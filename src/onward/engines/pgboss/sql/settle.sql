-- Record how runs have ended that did not end well, or that are to be run again; answers which claims were lost, matching each as
-- complete.sql does. A job that fails for good leaves a copy among its queue's dead letters, as pg-boss makes it. One that cannot
-- wait because the policy stately has given its place to another fails, as it would there. A run that is given back leaves
-- started_on empty: pg-boss then counts the next one as the same attempt. A snoozed job is kept as much longer as it waits: pg-boss
-- deletes what waits past keep_until.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, in microseconds since 1970; $5 states, $6 delays in microseconds,
-- $7 outputs, $8 whether the run is released, $9 whether the policy of the queue is stately
with ended as materialized (
  select e.*, case when e.wanted = 'retry' and e.stately and exists (
           select from pgboss.job_common k join pgboss.job_common o
             on o.name = k.name and o.state = 'retry' and o.policy = 'stately'
            and coalesce(o.singleton_key, '') = coalesce(k.singleton_key, '')
            where k.name = e.name and k.id = e.id and k.policy = 'stately') then 'failed' else e.wanted end as state
    from unnest($1::text::text[], $2::text::uuid[], $3::text::integer[], $4::text::bigint[], $5::text::text[],
                $6::text::bigint[], $7::text::text[], $8::text::boolean[], $9::text::boolean[]) with ordinality
      e (name, id, retry_count, started_micros, wanted, delay, output, released, stately, no)),
changed as (
  update pgboss.job_common j
     set state = e.state::pgboss.job_state,
         completed_on = case when e.state <> 'retry' then pgboss.job_now() end,
         start_after = case when e.state = 'retry' and e.delay is not null
                            then pgboss.job_now() + e.delay * interval '1 microsecond' else j.start_after end,
         keep_until = case when e.state = 'retry' and e.released and e.delay is not null
                           then greatest(j.keep_until, pgboss.job_now() + e.delay * interval '1 microsecond'
                                                       + (j.keep_until - j.start_after)) else j.keep_until end,
         started_on = case when e.state = 'retry' and e.released then null else j.started_on end,
         heartbeat_on = null,                                                         -- if job.heartbeat_on
         output = case
           when e.state <> e.wanted
             then '{"name": "PolicyConflict", "message": "the policy of the queue has given its place to another job"}'
           when e.released then j.output
           else e.output::jsonb end
    from ended e
   where j.name = e.name and j.id = e.id
     and j.state::text = 'active' and j.retry_count = e.retry_count
     and j.started_on = timestamptz 'epoch' + e.started_micros * interval '1 microsecond'
  returning j.*, e.no),
-- from dead_letter.sql
select e.no - 1 from ended e where e.no not in (select no from changed)
