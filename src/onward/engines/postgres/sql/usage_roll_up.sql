-- Sum up usage that is over.
select onward.roll_usage($1::bigint, $2::bigint, $3::text)
