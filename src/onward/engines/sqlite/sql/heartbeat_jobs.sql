-- Extend the leases of jobs that are held, each by its own length.
-- :claims  JSON array of [seq, claim_no]; :now
-- No index names lease_until, and no trigger watches it: a beat rewrites rows and nothing else.
update onward_job set lease_until = :now + lease_us
  from (select value ->> 0 as of_seq, value ->> 1 as of_claim from json_each(:claims))
 where seq = of_seq and claim_no = of_claim and status in ('claimed', 'running')
