-- Add jobs that differ in nothing but id and payload. Their keys are known to be free.
-- :rows  JSON array of [id, payload]: one text for all, which costs a third of binding each column of each row
-- What a job does not say, its queue says, where there is one.
insert into onward_job (id, queue, type, state, priority, org_id, payload, max_attempts, backoff, idempotency_key, key_digest,
                        dedupe_key, dedupe_digest, next_run_at, start_by, claim_no, created_at, ready_at, updated_at)
select value ->> 0, :queue, :type, iif(:due is null, 'pending', 'scheduled'), :priority, :org_id, value ->> 1,
       coalesce(:max_attempts, (select max_attempts from onward_queue where name = :queue), :attempts_else),
       coalesce(:backoff, (select backoff from onward_queue where name = :queue)),
       :idempotency_key, :key_digest, :dedupe_key, :dedupe_digest, :due, :start_by, :now, :now,
       iif(:due is null, :now, null), :now
  from json_each(:rows)
