-- Archived jobs, as find_live.sql gives live ones.
select id::text, type, queue, status, org_id, payload::text, priority, idempotency_key, dedupe_key, worker_id, attempts,
       max_attempts, crashes, false, backoff::text, last_error, errors::text, progress, progress_message, result::text,
       onward.to_micros(next_run_at), onward.to_micros(start_by), onward.to_micros(created_at), onward.to_micros(claimed_at),
       onward.to_micros(started_at), onward.to_micros(completed_at), onward.to_micros(updated_at), seq, batch
  from onward.archive
