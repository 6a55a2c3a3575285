-- Live jobs, all their columns, in the order that rows.job_of reads them. The condition is put behind it: see filters.py.
select id::text, type, queue, status, org_id, payload::text, priority, idempotency_key, dedupe_key, worker_id, attempts,
       max_attempts, crashes, suspect, backoff::text, last_error, errors::text, progress, progress_message, null::text,
       onward.to_micros(next_run_at), onward.to_micros(start_by), onward.to_micros(created_at), onward.to_micros(claimed_at),
       onward.to_micros(started_at), null::bigint, onward.to_micros(updated_at), seq, batch
  from onward.live
