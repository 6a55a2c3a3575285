-- Record that runs have ended well; answers the claims that were lost. Each matches the claim: the attempt, when it began, and
-- the number that we gave it. pg-boss itself matches the attempt only, and its restore() gives one attempt twice.
-- The state is compared as text, so that no index on it is taken: by a plan that is made for any number of jobs, each would be
-- compared with each. By the primary key it is one look for each, whatever the statistics say.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, in microseconds since 1970, $5 claims, $6 outputs
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
  returning j.id)
select e.name, e.id::text, e.retry_count, e.began, e.claim
  from ended e where e.id not in (select id from done)
