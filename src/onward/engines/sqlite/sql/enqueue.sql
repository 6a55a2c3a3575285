-- Add jobs that differ in nothing but id and payload, unless their queue is not there or claims do not look at it; `include_closed`:
-- they may look at it later. What the jobs do not say, the queue says. Their keys are known to be free.
-- :rows  JSON array of texts, each an id and the payload behind it: one text for all costs a third of binding each column
--        of each row
insert into onward_job (id, queue, type, status, priority, org_id, payload, max_attempts, backoff, idempotency_key, key_digest,
                        dedupe_key, dedupe_digest, next_run_at, start_by, created_at, ready_at, updated_at,
                        batch, pending_dependencies, on_dependency_failure, trace)
select substr(value, 1, 36), name, :type, :status, :priority, :org_id, substr(value, 37),
       coalesce(:max_attempts, max_attempts, :default_max_attempts), coalesce(:backoff, backoff), :idempotency_key, :key_digest,
       :dedupe_key, :dedupe_digest, :due, :start_by, :now, :ready, :now,
       :batch, :pending_dependencies, :on_dependency_failure, :trace
  from onward_queue cross join json_each(:rows)
 where name = :queue and (open = 1 or :include_closed)
