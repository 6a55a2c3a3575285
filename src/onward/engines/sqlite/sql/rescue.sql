-- Give back a job that its worker has lost. A started one gets its attempt back and is a suspect from here on; one that
-- was alone in the process has a crash held against it.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
update onward_job
   set status = 'pending', lease_until = null, worker_id = null, suspect = iif(status = 'running', 1, suspect),
       attempts = attempts - (status = 'running'), crashes = crashes + (status = 'running' and isolated), isolated = 0,
       updated_at = max(:now, updated_at + 1)
 where status in ('claimed', 'running') and lease_until <= :now and seq in (select value from json_each(:seqs))
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
