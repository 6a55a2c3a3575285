-- Queues by name, with what they are told to do.
-- :first, :end  the names wanted: from :first up to but not including :end
select name, paused, rate_count, rate_period_us, rate_burst, next_permit_at, global_concurrency, weight, lease_us, max_attempts, backoff,
       keep_completed_us, keep_completed_count, keep_failed_us, keep_failed_count, keep_cancelled_us, keep_archived_us,
       pause_reason, paused_by, paused_at
  from onward_queue where name >= :first and name < :end order by name
