-- Cancel a claimed job that was not started in time.
update onward_job
   set status = 'cancelled', completed_at = :now, lease_until = null, last_error = 'expired: not started in time',
       updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status = 'claimed' and start_by <= :now
