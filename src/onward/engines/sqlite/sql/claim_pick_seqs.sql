-- The same jobs as claim_pick, by number only: what is wrong with a row cannot be in the way here.
-- :queue, :limit, :now
-- Relies on: onward_job_claim.
select seq from onward_job indexed by onward_job_claim
 where queue = :queue and status = 'pending' and suspect = 0 and (start_by is null or start_by > :now)
 order by priority desc, ready_at, seq limit :limit
