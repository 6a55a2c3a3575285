-- Forget workers that have gone silent. Touches no job (O7).
delete from onward_worker
 where last_heartbeat < :now - :timeout_us
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
