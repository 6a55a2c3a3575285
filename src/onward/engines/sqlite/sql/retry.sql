-- Record a failed run that will be tried again. It keeps its attempt.
update onward_job
   set status = 'scheduled', next_run_at = :now + :delay_us, lease_until = null, suspect = 0, was_lost = 0, last_error = :last_error,
       errors = json_insert(iif(json_array_length(errors) >= 20, json_remove(errors, '$[0]'), coalesce(errors, '[]')), '$[#]',
                            json_set(:error, '$.attempt', attempts, '$.worker_id', worker_id)), updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status = 'running'
