-- Give back a job that its worker has lost. A started one gets its attempt back and is a suspect from here on; one that
-- was alone in the process has a crash held against it.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
update onward_job
   set state = 'pending', lease_until = null, worker_id = null, suspect = iif(state = 'running', 1, suspect),
       attempts = attempts - (state = 'running'), crashes = crashes + (state = 'running' and alone), alone = 0,
       updated_at = max(:now, updated_at + 1)
 where state in ('claimed', 'running') and lease_until <= :now and seq in (select value from json_each(:seqs))
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
