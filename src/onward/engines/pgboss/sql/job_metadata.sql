-- What stands beside the payload of a job.
-- $1 queue, $2 id
select (j.data -> '$onward')::text from pgboss.job j where j.name = $1::text and j.id = $2::uuid
