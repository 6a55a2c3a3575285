-- Keep what a worker holds; answers the claims that are lost, and whether because the job was cancelled.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, $5 claims
with held as materialized (
  select * from unnest($1::text[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::text[])
    h (name, id, retry_count, started_on, claim)),
kept as (
  update pgboss.job j
     set output = jsonb_set(j.output, '{onward,until}', to_jsonb(
           extract(epoch from pgboss.job_now()) + (j.output #>> '{onward,lease}')::numeric))
         , heartbeat_on = pgboss.job_now()                                            -- if job.heartbeat_on
    from held h
   where j.name = h.name and j.id = h.id and j.name = any ($1::text[]) and j.id = any ($2::uuid[])
     and j.state = 'active' and j.retry_count = h.retry_count and j.started_on = h.started_on
     and j.output #>> '{onward,claim}' = h.claim
  returning j.name, j.id)
select h.name, h.id::text, h.retry_count, h.started_on, h.claim,
       exists (select from pgboss.job j
                where j.name = h.name and j.id = h.id and j.state = 'cancelled' and j.retry_count = h.retry_count
                  and j.started_on = h.started_on)
  from held h where h.id not in (select id from kept)
