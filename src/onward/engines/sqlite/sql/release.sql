-- Give a job back that was not run, or not to its end. A started one gets its attempt back; it keeps its place.
update onward_job
   set status = 'pending', lease_until = null, attempts = attempts - (status = 'running'), worker_id = null,
       updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status in ('claimed', 'running')
