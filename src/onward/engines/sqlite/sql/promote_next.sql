-- When there will be something to promote or to expire.
-- Relies on: onward_job_promote, onward_job_expire.
select min(at) from (
  select (select min(next_run_at) from onward_job indexed by onward_job_promote where status = 'scheduled') as at
  union all
  select (select min(start_by) from onward_job indexed by onward_job_expire
           where start_by is not null and start_by > :now and completed_at is null))
