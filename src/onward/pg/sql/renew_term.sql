-- Stay the leader: matches the exact term, and only while it lasts.
-- $1 now, $2 candidate, $3 lease, $4 number
update onward.leader set until = coalesce($1::timestamptz, clock_timestamp()) + $3::interval
 where number = $4::bigint and leader_id = $2::text and until > coalesce($1::timestamptz, clock_timestamp())
returning number, leader_id, until
