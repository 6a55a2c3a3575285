-- End a job at once: no handler, do-not-retry.
update onward_job
   set status = 'failed', completed_at = :now, lease_until = null, suspect = 0, last_error = :last_error,
       errors = json_insert(iif(json_array_length(errors) >= 20, json_remove(errors, '$[0]'), coalesce(errors, '[]')), '$[#]',
                            json_set(:error, '$.attempt', attempts, '$.worker_id', worker_id)), updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status in ('claimed', 'running')
