-- Let claims look at rate-limited queues again whose next rate permit has come.
-- Relies on: onward_queue_reopen.
update onward_queue set open = 1, reopens_at = null where reopens_at <= :now and paused = 0
