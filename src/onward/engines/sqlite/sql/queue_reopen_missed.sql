-- Open queues that hold ready jobs but are closed to claims without a reason: jobs added by hand, with plain SQL.
-- :number, :leader_id  the leader's term; :now
-- Relies on: onward_job_claim, from which it reads one entry per queue.
with recursive ready (name) as (
  select min(queue) from onward_job where status = 'pending' and suspect = 0
  union all
  select (select min(queue) from onward_job where status = 'pending' and suspect = 0 and queue > name)
    from ready where name is not null)
update onward_queue set open = 1
 where open = 0 and paused = 0 and reopens_at is null and name in (select name from ready where name is not null)
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
