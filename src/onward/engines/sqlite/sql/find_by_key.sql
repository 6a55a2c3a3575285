-- The job that stands for an idempotency key, live or finished; its updated_at is touched.
-- Relies on: onward_job_key.
update onward_job set updated_at = max(:now, updated_at + 1) where key_digest = :digest returning queue, id
