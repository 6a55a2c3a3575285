-- Take workers off the list that have been silent for too long; a leader's work, so it matches the term.
-- $1 now, $2 number, $3 leader, $4 how long
delete from onward.worker
 where last_heartbeat < coalesce($1::timestamptz, clock_timestamp()) - $4::interval
   and exists (select from onward.leader
                where number = $2::bigint and leader_id = $3::text and until > coalesce($1::timestamptz, clock_timestamp()))
