-- Store how far a held job is.
update onward_job
   set progress = coalesce(:progress, progress), progress_message = iif(:progress is null, progress_message, :message),
       updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status = 'running'
