-- Jobs, all their columns, in the order that rows.job_of reads them. The condition is put behind it: see filters.py.
select id, type, queue, status, org_id, payload, priority, idempotency_key, dedupe_key, worker_id, attempts, max_attempts,
       crashes, suspect, backoff, last_error, errors, progress, progress_message, result, next_run_at, start_by, created_at,
       claimed_at, started_at, completed_at, updated_at, seq, batch
  from onward_job
