-- Queues that keep finished jobs by number.
select name, keep_completed_count, keep_failed_count from onward_queue
 where keep_completed_count is not null or keep_failed_count is not null
