-- Record that runs have ended well; answers the claims that were lost. Each matches the claim: the attempt, and when it began.
-- pg-boss itself matches the attempt only, and its restore() gives one attempt twice.
-- The state is compared as text, so that no index on it is taken: by a plan that is made for any number of jobs, each would be
-- compared with each. By the primary key it is one look for each, whatever the statistics say.
-- By place, the row is looked for where the claim has left it, which spares the index. It seldom lies elsewhere, and then this
-- finds nothing, and says so.
-- $1 queues, $2 ids, $3 attempts, $4 when they began, in microseconds since 1970, $5 batches, $6 places, $7 outputs
with ended as materialized (
  select * from unnest($1::text::text[], $2::text::uuid[], $3::text::integer[], $4::text::bigint[], $5::text::bigint[],
                       $6::text::tid[], $7::text::text[]) e (name, id, retry_count, began, batch, place, output)),
done as (
  update pgboss.job_common j
     set state = 'completed', completed_on = pgboss.job_now(), output = e.output::jsonb
    from ended e
   where j.name = e.name and j.id = e.id
     and j.ctid = e.place                                                             -- if way.by_place
     and j.state::text = 'active' and j.retry_count = e.retry_count
     and j.started_on = timestamptz 'epoch' + e.began * interval '1 microsecond'
  returning j.id)
select e.name, e.id::text, e.retry_count, e.began, e.batch, e.place::text
  from ended e where e.id not in (select id from done)
