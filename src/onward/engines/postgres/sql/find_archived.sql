-- Archived jobs, as find_live.sql gives live ones.
select id::text, type, queue, state, org_id, payload::text, priority, idempotency_key, dedupe_key, worker_id, attempts,
       max_attempts, crashes, false, backoff::text, last_error, errors::text, progress, progress_message, result::text,
       onward.micros(next_run_at), onward.micros(start_by), onward.micros(created_at), onward.micros(claimed_at),
       onward.micros(started_at), onward.micros(completed_at), onward.micros(updated_at), seq, batch
  from onward.archive
