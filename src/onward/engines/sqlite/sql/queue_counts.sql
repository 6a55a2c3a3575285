-- How many jobs of each queue are in each status, and since when the oldest ready one has waited.
-- :first, :end  the names wanted. Each part reads an index only.
select queue, 'pending', count(*), min(ready_at) from onward_job indexed by onward_job_claim
 where status = 'pending' and suspect = 0 and queue >= :first and queue < :end group by queue
union all
select queue, 'pending', count(*), min(ready_at) from onward_job indexed by onward_job_suspect
 where status = 'pending' and suspect = 1 and queue >= :first and queue < :end group by queue
union all
select queue, status, count(*), null from onward_job indexed by onward_job_held
 where status in ('claimed', 'running') and queue >= :first and queue < :end group by queue, status
union all
select queue, 'scheduled', count(*), null from onward_job indexed by onward_job_promote
 where status = 'scheduled' and queue >= :first and queue < :end group by queue
union all
select queue, 'blocked', count(*), null from onward_job indexed by onward_job_blocked
 where status = 'blocked' and queue >= :first and queue < :end group by queue
union all
select queue, status, count(*), null from onward_job indexed by onward_job_prune
 where completed_at is not null and queue >= :first and queue < :end group by queue, status
