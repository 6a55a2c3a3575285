-- Shorten leases that end later than any lease of now would: the clock has been set back. A worker that lives renews its own.
-- :number, :leader_id  the leader's term; :now
-- Relies on: onward_job_held, which holds no more rows than there are slots in all workers.
update onward_job indexed by onward_job_held set lease_until = :now + lease_us
 where status in ('claimed', 'running') and lease_until > :now + lease_us
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
