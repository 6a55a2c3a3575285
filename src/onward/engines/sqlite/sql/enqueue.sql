-- Add a job. The caller has made its queue, and knows that its keys are free.
insert into onward_job (id, queue, type, state, priority, org_id, payload, max_attempts, backoff, idempotency_key,
                        key_digest, dedupe_key, dedupe_digest, next_run_at, start_by, created_at, ready_at, updated_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
