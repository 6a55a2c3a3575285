-- What is due, as one row of JSON.
-- Relies on: onward_job_promote.
select json_group_array(json_array(seq, queue))
  from (select seq, queue from onward_job indexed by onward_job_promote
         where status = 'scheduled' and next_run_at <= :now order by next_run_at limit :limit)
