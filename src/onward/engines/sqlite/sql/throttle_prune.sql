-- Remove throttles that are over.
-- :number, :leader_id  the leader's term; :limit, :now
-- Relies on: onward_throttle_until.
delete from onward_throttle
 where digest in (select digest from onward_throttle indexed by onward_throttle_until
                   where until <= :now
                     and not exists (select 1 from onward_job j
                                      where j.id = onward_throttle.id and j.status in ('scheduled', 'pending') and j.attempts = 0)
                   limit :limit)
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
