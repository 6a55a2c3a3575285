-- Call again later, at the handler's own wish. The attempt is given back.
update onward_job
   set status = 'scheduled', next_run_at = :now + :delay_us, lease_until = null, attempts = attempts - 1,
       -- Put back: no handler ran, and nothing is known of the job that was not known before.
       suspect = suspect and :is_put_back, was_lost = was_lost and :is_put_back,
       updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status = 'running'
