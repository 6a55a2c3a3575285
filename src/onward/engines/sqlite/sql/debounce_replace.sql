-- Let a job that waits for quiet have another payload, and wait anew if its time has not come.
-- :digest, :payload, :due, :now
update onward_job
   set payload = :payload, next_run_at = iif(status = 'scheduled', :due, next_run_at), updated_at = max(:now, updated_at + 1)
 where id = (select id from onward_throttle where digest = :digest) and status in ('scheduled', 'pending') and attempts = 0
returning queue, id
