-- Have a queue get a job for each event of a name.
-- $1 event, $2 queue
insert into pgboss.subscription (event, name, created_on, updated_on)
values ($1::text, $2::text, pgboss.job_now(), pgboss.job_now())
on conflict (event, name) do update set updated_on = excluded.updated_on
