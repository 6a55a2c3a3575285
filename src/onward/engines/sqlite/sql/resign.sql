-- End a term before its time.
update onward_leader set until = :now where number = :number and leader_id = :leader_id and until > :now
