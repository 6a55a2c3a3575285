-- Which of these claims are held no longer, and whether they were cancelled, as one row of JSON.
-- :claims  JSON array of [seq, claim_no]
select json_group_array(json_array(of_seq, of_claim, claim_no = of_claim and status = 'cancelled'))
  from (select value ->> 0 as of_seq, value ->> 1 as of_claim from json_each(:claims))
  left join onward_job on seq = of_seq
 where seq is null or claim_no <> of_claim or status not in ('claimed', 'running')
