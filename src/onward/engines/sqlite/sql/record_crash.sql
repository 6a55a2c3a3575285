-- Count a crash of the child process in which a suspect ran alone.
-- :crashes  how many there are now
update onward_job set crashes = :crashes, updated_at = max(:now, updated_at + 1)
 where seq = :seq and claim_no = :claim_no and status = 'running'
