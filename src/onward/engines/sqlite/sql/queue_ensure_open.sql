-- Make queues by use, and let claims look at them: work has become ready there.
-- :names  JSON array; :now, and the default retention :completed_us, :cancelled_us
insert into onward_queue (name, open, keep_completed_us, keep_cancelled_us, created_at)
select value, 1, :completed_us, :cancelled_us, :now from json_each(:names) where true
on conflict (name) do update set open = 1, reopens_at = null where open = 0 and paused = 0
