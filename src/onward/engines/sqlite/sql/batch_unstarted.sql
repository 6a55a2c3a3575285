-- Jobs of a batch that have not started.
-- Relies on: onward_job_batch.
select json_group_array(seq)
  from (select seq from onward_job indexed by onward_job_batch
         where batch = :name and status in ('scheduled', 'blocked', 'pending') limit :limit)
