-- Have events recorded for a while; answers whether it must be waited for those who began to write before.
-- $1 now, $2 for how long
select onward.listen($1::bigint, $2::bigint)
