-- Take jobs back, as pg-boss does; answers the state that each had. The rows are locked first: what a claim is about to take is
-- waited for, and then it is taken back from the worker.
-- $1 queues, $2 ids, $3 why
with picked as materialized (
  select j.name, j.id, j.state, j.start_after
         , j.blocked                                                                  -- if job.blocked
    from unnest($1::text[], $2::uuid[]) p (name, id) join pgboss.job j on j.name = p.name and j.id = p.id
   where j.name = any ($1::text[]) and j.id = any ($2::uuid[]) and j.state < 'completed'
   order by j.name, j.id for update of j),
changed as (
  update pgboss.job j set state = 'cancelled', completed_on = pgboss.job_now(), output = jsonb_build_object('message', $3::text)
    from picked p
   where j.name = p.name and j.id = p.id and j.state < 'completed'
  returning j.name, j.id)
select p.name, p.id::text, case
         when p.state = 'active' then 'running'
         when p.blocked then 'blocked'                                                -- if job.blocked
         when p.start_after > pgboss.job_now() then 'scheduled'
         else 'pending' end
  from picked p join changed c on c.name = p.name and c.id = p.id
