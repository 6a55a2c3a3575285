-- One job as claim_pick gives it, with its payload however long.
-- :seq
select json_array(seq, id, type, payload, attempts, max_attempts, crashes, suspect, org_id, priority, backoff, ready_at,
                  trace, 0)
  from onward_job where seq = :seq
