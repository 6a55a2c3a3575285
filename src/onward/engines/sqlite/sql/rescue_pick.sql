-- Held jobs whose lease has run out, as one row of JSON. Looks at nothing but the lease.
-- Relies on: onward_job_held, which holds no more rows than there are slots in all workers.
select json_group_array(json_array(seq, queue))
  from (select seq, queue from onward_job indexed by onward_job_held
         where status in ('claimed', 'running') and lease_until <= :now limit :limit)
