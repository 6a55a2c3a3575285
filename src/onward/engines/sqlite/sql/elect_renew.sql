-- Stay the leader: matches the exact term, and only while it lasts.
update onward_leader set until = :now + :lease_us where number = :number and leader_id = :candidate and until > :now
