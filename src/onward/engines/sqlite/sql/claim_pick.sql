-- The next jobs of one queue, as one row of JSON: the higher priority first, then the longer ready. A long payload is left
-- out, with its length in its place: one text has a maximum length, and memory has one too.
-- :queue, :limit, :max_inline (characters), :now
-- Relies on: onward_job_claim, so that jobs which wait for their time, run or are done are never looked at.
select json_group_array(json_array(seq, id, type, iif(length(payload) > :max_inline, '', payload), attempts, max_attempts, crashes,
                                   suspect, org_id, priority, backoff, ready_at, trace,
                                   iif(length(payload) > :max_inline, length(payload), 0)))
  from (select * from onward_job indexed by onward_job_claim
         where queue = :queue and status = 'pending' and suspect = 0 and (start_by is null or start_by > :now)
         order by priority desc, ready_at, seq limit :limit)
