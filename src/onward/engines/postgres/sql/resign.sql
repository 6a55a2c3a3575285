-- End a term before its time.
-- $1 now, $2 number, $3 leader
update onward.leader set until = coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
 where number = $2::bigint and leader_id = $3::text and until > coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
