-- Record that runs came back with a result.
-- :claims  JSON array of [seq, claim_no, result]; :now
update onward_job
   set status = 'completed', result = of_result, completed_at = :now, lease_until = null, suspect = 0,
       updated_at = max(:now, updated_at + 1)
  from (select value ->> 0 as of_seq, value ->> 1 as of_claim, value ->> 2 as of_result from json_each(:claims))
 where seq = of_seq and claim_no = of_claim and status = 'running'
