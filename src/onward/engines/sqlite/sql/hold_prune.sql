-- Forget holds that hold nothing any more.
-- :number, :leader_id  the leader's term; :limit, :now
-- Relies on: onward_hold_until.
delete from onward_hold
 where digest in (select digest from onward_hold indexed by onward_hold_until
                   where until <= :now
                     and not exists (select 1 from onward_job j
                                      where j.id = onward_hold.id and j.state in ('scheduled', 'pending') and j.attempts = 0)
                   limit :limit)
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
