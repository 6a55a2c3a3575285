-- Take a job back at its own handler's wish.
update onward_job
   set status = 'cancelled', completed_at = :now, lease_until = null, suspect = 0, last_error = :last_error,
       updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status in ('claimed', 'running')
