-- Date heartbeats of the future back to now: the clock has been set back. A worker that lives sends its next one by the new time.
-- :number, :leader_id  the leader's term; :now
update onward_worker set last_heartbeat = :now
 where last_heartbeat > :now
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
