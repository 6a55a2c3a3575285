-- Change a job that waits.
update onward_job
   set priority = coalesce(:priority, priority), payload = coalesce(:payload, payload),
       next_run_at = coalesce(:next_run_at, next_run_at), max_attempts = coalesce(:max_attempts, max_attempts),
       updated_at = max(:now, updated_at + 1)
 where id = :id and status in ('scheduled', 'blocked', 'pending') and (:next_run_at is null or status = 'scheduled')
