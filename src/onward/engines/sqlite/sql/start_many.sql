-- Record that the handlers of claimed jobs start now.
-- :claims  JSON array of [seq, claim_no]; :now. A job that has expired is not started.
update onward_job
   set status = 'running', attempts = attempts + 1, started_at = :now, updated_at = max(:now, updated_at + 1)
  from (select value ->> 0 as of_seq, value ->> 1 as of_claim from json_each(:claims))
 where seq = of_seq and claim_no = of_claim and status = 'claimed' and (start_by is null or start_by > :now)
