-- The job that stands for a dedupe key: waiting or running.
-- Relies on: onward_job_dedupe.
select queue, id from onward_job where dedupe_digest = :digest and completed_at is null
