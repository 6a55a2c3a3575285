-- How many jobs of a queue are held, by all workers together.
-- Relies on: onward_job_held.
select count(*) from onward_job where queue = :queue and status in ('claimed', 'running')
