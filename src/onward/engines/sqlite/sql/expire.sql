-- Cancel jobs that were not started in time.
-- :number, :leader_id  the leader's term; :limit, :now
-- Relies on: onward_job_expire.
update onward_job
   set status = 'cancelled', completed_at = :now, last_error = 'expired: not started in time',
       updated_at = max(:now, updated_at + 1)
 where seq in (select seq from onward_job indexed by onward_job_expire
                where start_by <= :now and start_by is not null and completed_at is null
                  and status in ('scheduled', 'blocked', 'pending') limit :limit)
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
