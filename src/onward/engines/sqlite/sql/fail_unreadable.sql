-- End a job whose row cannot be read. It was written by hand, or is damaged. What was in its payload is kept as hexadecimal
-- digits, which can be read.
-- :seq, :last_error, :error (JSON), :now
update onward_job
   set status = 'failed', completed_at = :now, suspect = 0, last_error = :last_error, backoff = null,
       payload = json_object('unreadable', hex(payload)), errors = json_array(json(:error)), updated_at = max(:now, updated_at + 1)
 where seq = :seq and status = 'pending'
