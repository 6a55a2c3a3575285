-- Record that runs of one queue have ended well; answers which claims were lost, by their number in the list. Each matches the
-- claim: the attempt, and when it began. pg-boss itself matches the attempt only, and its restore() gives one attempt twice.
-- The state is compared as text, so that no index on it is taken: by a plan that is made for any number of jobs, each would be
-- compared with each. By the primary key it is one look for each, whatever the statistics say; they say nothing of a name that
-- is known only when the statement is under way.
-- By ctid, the row is looked for where the claim has left it, which spares the index. It seldom lies elsewhere, and then this
-- finds nothing, and says so.
-- $1 queue, $2 ids, $3 attempts, $4 when they began, in microseconds since 1970, $5 ctids, $6 outputs; of outputs there may be none
with ended as materialized (
  select $1::text as name, e.* from unnest($2::text::uuid[], $3::text::integer[], $4::text::bigint[], $5::text::tid[], $6::text::text[])
    with ordinality e (id, retry_count, started_micros, row_ctid, output, no)),
done as (
  update pgboss.job_common j
     set state = 'completed', completed_on = pgboss.job_now(), output = e.output::jsonb
    from ended e
   where j.name = e.name and j.id = e.id
     and j.ctid = e.row_ctid                                                          -- if variant.by_ctid
     and j.state::text = 'active' and j.retry_count = e.retry_count
     and j.started_on = timestamptz 'epoch' + e.started_micros * interval '1 microsecond'
  returning e.no)
select e.no - 1 from ended e where e.no not in (select no from done)
