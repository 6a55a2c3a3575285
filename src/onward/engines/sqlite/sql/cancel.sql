-- Take jobs back, wherever they are in their life before its end. A held one is taken from its worker by the fence.
-- :seqs  JSON array; :last_error, :now
update onward_job
   set status = 'cancelled', completed_at = :now, lease_until = null, suspect = 0, last_error = :last_error,
       updated_at = max(:now, updated_at + 1)
 where status in ('scheduled', 'blocked', 'pending', 'claimed', 'running') and seq in (select value from json_each(:seqs))
