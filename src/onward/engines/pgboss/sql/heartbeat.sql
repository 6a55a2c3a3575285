-- Keep what a worker holds; answers the claims that are lost, and whether because the job was cancelled.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, in microseconds since 1970, $5 claims
with held as materialized (
  select * from unnest($1::text::text[], $2::text::uuid[], $3::text::integer[], $4::text::bigint[], $5::text::text[])
    h (name, id, retry_count, began, claim)),
kept as (
  update pgboss.job j
     set output = jsonb_set(j.output, '{onward,until}', to_jsonb(
           extract(epoch from pgboss.job_now()) + (j.output #>> '{onward,lease}')::numeric))
         , heartbeat_on = pgboss.job_now()                                            -- if job.heartbeat_on
    from held h
   where j.name = h.name and j.id = h.id
     and j.state::text = 'active' and j.retry_count = h.retry_count
     and j.started_on = timestamptz 'epoch' + h.began * interval '1 microsecond'
     and j.output #>> '{onward,claim}' = h.claim
  returning j.name, j.id)
select h.name, h.id::text, h.retry_count, h.began, h.claim,
       exists (select from pgboss.job j
                where j.name = h.name and j.id = h.id and j.state = 'cancelled' and j.retry_count = h.retry_count
                  and j.started_on = timestamptz 'epoch' + h.began * interval '1 microsecond')
  from held h where h.id not in (select id from kept)
