-- Remove archived messages that need not be kept.
-- $1 term, $2 leader, $3 limit
select onward.prune($1::bigint, $2::text, $3::integer)
