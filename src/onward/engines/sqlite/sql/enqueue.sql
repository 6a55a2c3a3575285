-- Add jobs that differ in nothing but id and payload. Their keys are known to be free.
-- :rows  JSON array of texts, each an id and the payload behind it: one text for all costs a third of binding each column
--        of each row
insert into onward_job (id, queue, type, state, priority, org_id, payload, max_attempts, backoff, idempotency_key, key_digest,
                        dedupe_key, dedupe_digest, next_run_at, start_by, claim_no, created_at, ready_at, updated_at)
select substr(value, 1, 36), :queue, :type, :state, :priority, :org_id, substr(value, 37), :max_attempts, :backoff,
       :idempotency_key, :key_digest, :dedupe_key, :dedupe_digest, :due, :start_by, :now, :now, :ready, :now
  from json_each(:rows)
