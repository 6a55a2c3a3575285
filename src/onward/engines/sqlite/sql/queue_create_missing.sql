-- Make queues for jobs that were added by hand, with plain SQL.
-- :number, :leader_id  the leader's term; :now, and the default retention :completed_us, :cancelled_us
-- Relies on: onward_job_claim, from which it reads one entry per queue.
with recursive ready (name) as (
  select min(queue) from onward_job where status = 'pending' and suspect = 0
  union all
  select (select min(queue) from onward_job where status = 'pending' and suspect = 0 and queue > name)
    from ready where name is not null)
insert into onward_queue (name, keep_completed_us, keep_cancelled_us, created_at)
select name, :completed_us, :cancelled_us, :now from ready
 where name is not null and not exists (select 1 from onward_queue q where q.name = ready.name)
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
