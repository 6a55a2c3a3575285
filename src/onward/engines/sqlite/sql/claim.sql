-- Take the picked jobs. Those that start at once are running from here on, before their handler's first line.
-- :seqs  JSON array; :claim_no  one for all of them; :worker_id, :lease_us, :started (0 or 1), :now
update onward_job
   set status = iif(:started, 'running', 'claimed'), claim_no = :claim_no, attempts = attempts + :started,
       worker_id = :worker_id, lease_us = :lease_us, lease_until = :now + :lease_us, claimed_at = :now,
       started_at = iif(:started, :now, null), updated_at = max(:now, updated_at + 1)
 where status = 'pending' and seq in (select value from json_each(:seqs))
