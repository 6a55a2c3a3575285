-- Record that runs have ended well; answers the claims that were lost. Each matches the claim: the attempt, when it began, and
-- the number that we gave it. pg-boss itself matches the attempt only, and its restore() gives one attempt twice.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, $5 claims, $6 outputs
with ended as materialized (
  select * from unnest($1::text[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::text[], $6::text[])
    e (name, id, retry_count, started_on, claim, output)),
done as (
  update pgboss.job_common j
     set state = 'completed', completed_on = pgboss.job_now(), output = e.output::jsonb
    from ended e
   where j.name = e.name and j.id = e.id and j.name = any ($1::text[]) and j.id = any ($2::uuid[])
     and j.state = 'active' and j.retry_count = e.retry_count and j.started_on = e.started_on
     and j.output #>> '{onward,claim}' = e.claim
  returning j.id)
select e.name, e.id::text, e.retry_count, e.started_on, e.claim
  from ended e where e.id not in (select id from done)
