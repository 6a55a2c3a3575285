-- Give an ended job a new life, unless another has taken its dedupe key in the meantime.
-- :seq, :now
update onward_job
   set status = 'pending', attempts = 0, crashes = 0, suspect = 0, was_lost = 0, completed_at = null, next_run_at = null,
       worker_id = null, claimed_at = null, started_at = null, start_by = null, progress = null, progress_message = null,
       ready_at = :now, updated_at = max(:now, updated_at + 1)
 where seq = :seq and status in ('failed', 'dead_letter', 'cancelled')
   and not exists (select 1 from onward_job other
                    where other.dedupe_digest = onward_job.dedupe_digest and other.completed_at is null)
