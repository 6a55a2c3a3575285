-- Tell of messages whose time has come.
-- $1 term, $2 leader, $3 limit
select promoted, queues, examined, next_in from onward.promote($1::bigint, $2::text, $3::integer)
