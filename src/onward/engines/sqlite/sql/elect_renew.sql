-- Stay the leader: matches the exact term, and only while it lasts.
update onward_leader set until = :now + :lease_us, renewed_at = :now
 where number = :number and leader_id = :candidate and until > :now
