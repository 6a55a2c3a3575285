-- Hold jobs that nobody else does; answers the others.
-- $1 the jobs
select onward.hold_free($1::text::bigint[])
