-- Give back what dead workers held, and forget the workers.
-- $1 term, $2 leader, $3 worker timeout, $4 limit
select rescued, queues from onward.rescue($1::bigint, $2::text, onward.to_interval($3::bigint), $4::integer)
