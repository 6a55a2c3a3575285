-- Hold jobs that nobody else does; answers the others.
-- $1 the jobs
select onward.lock_available($1::text::bigint[])
