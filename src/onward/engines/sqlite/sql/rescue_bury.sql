-- Bury a job that has taken its worker down once too often, alone in the process each time.
-- :seq, :last_error, :error; :number, :leader_id  the leader's term; :now
update onward_job
   set status = 'dead_letter', lease_until = null, completed_at = :now, attempts = attempts - 1, crashes = crashes + 1,
       last_error = :last_error,
       errors = json_insert(iif(json_array_length(errors) >= 20, json_remove(errors, '$[0]'), coalesce(errors, '[]')), '$[#]',
                            json_set(:error, '$.attempt', attempts, '$.worker_id', worker_id)),
       updated_at = max(:now, updated_at + 1)
 where status = 'running' and isolated and lease_until <= :now and seq = :seq
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
