-- Open limited queues whose next permit is further away than it ever is: the clock has been set back, or the rate has been
-- raised. A claim then finds the time of the next permit.
-- :number, :leader_id  the leader's term; :now
-- Relies on: onward_queue_reopen.
update onward_queue indexed by onward_queue_reopen set open = 1, reopens_at = null
 where reopens_at > :now + 2 * rate_period_us and paused = 0
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
