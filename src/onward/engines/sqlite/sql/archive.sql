-- Copy finished jobs that are no longer kept into the archive, unless their queue wants none.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
insert into onward_archive (until, id, queue, type, status, priority, org_id, payload, attempts, max_attempts, crashes, suspect,
                            backoff, idempotency_key, dedupe_key, next_run_at, start_by, worker_id, created_at, claimed_at,
                            started_at, completed_at, updated_at, last_error, errors, progress, progress_message, result, batch)
select :now + q.keep_archived_us, j.id, j.queue, j.type, j.status, j.priority, j.org_id, j.payload, j.attempts, j.max_attempts,
       j.crashes, j.suspect, j.backoff, j.idempotency_key, j.dedupe_key, j.next_run_at, j.start_by, j.worker_id, j.created_at,
       j.claimed_at, j.started_at, j.completed_at, j.updated_at, j.last_error, j.errors, j.progress, j.progress_message,
       j.result, j.batch
  from json_each(:seqs) s
  cross join onward_job j on j.seq = s.value and j.completed_at is not null
  cross join onward_queue q on q.name = j.queue and q.keep_archived_us is not 0
 where exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
