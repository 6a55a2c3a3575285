-- Add one job. Its keys are known to be free.
insert into onward_job (id, queue, type, state, priority, org_id, payload, max_attempts, backoff, idempotency_key, key_digest,
                        dedupe_key, dedupe_digest, next_run_at, start_by, claim_no, created_at, ready_at, updated_at)
values (:id, :queue, :type, :state, :priority, :org_id, :payload, :max_attempts, :backoff, :idempotency_key, :key_digest,
        :dedupe_key, :dedupe_digest, :due, :start_by, :now, :now, :ready, :now)
