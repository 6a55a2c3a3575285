-- Finished jobs that are older than their queue keeps them, as one row of JSON.
-- :limit, :now
-- Relies on: onward_job_prune. The joins are `cross` to go from the queues to their jobs: the other way round reads all history.
select json_group_array(seq) from (
  select j.seq from onward_queue q cross join onward_job j indexed by onward_job_prune
      on j.queue = q.name and j.status = 'completed' and j.completed_at <= :now - q.keep_completed_us
   where j.completed_at is not null
  union all
  select j.seq from onward_queue q cross join onward_job j indexed by onward_job_prune
      on j.queue = q.name and j.status in ('failed', 'dead_letter') and j.completed_at <= :now - q.keep_failed_us
   where j.completed_at is not null
  union all
  select j.seq from onward_queue q cross join onward_job j indexed by onward_job_prune
      on j.queue = q.name and j.status = 'cancelled' and j.completed_at <= :now - q.keep_cancelled_us
   where j.completed_at is not null
  limit :limit)
