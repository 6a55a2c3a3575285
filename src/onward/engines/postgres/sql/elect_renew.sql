-- Stay the leader: matches the exact term, and only while it lasts.
-- $1 now, $2 candidate, $3 lease, $4 number
update onward.leader
   set until = coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) + onward.to_interval($3::bigint),
       renewed_at = coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
 where number = $4::bigint and leader_id = $2::text and until > coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
returning number, leader_id, onward.to_micros(until)
