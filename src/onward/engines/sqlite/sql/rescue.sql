-- Give back a job whose lease has run out. A started one gets its attempt back. The first time it runs again like any other
-- job; if its next run is lost, too, it is a suspect.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
update onward_job
   set status = 'pending', lease_until = null, worker_id = null, suspect = suspect or (status = 'running' and was_lost),
       was_lost = was_lost or status = 'running', attempts = attempts - (status = 'running'),
       updated_at = max(:now, updated_at + 1)
 where status in ('claimed', 'running') and lease_until <= :now and seq in (select value from json_each(:seqs))
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
