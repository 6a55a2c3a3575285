-- Let claims look at queues again in which work has become ready.
-- :names  JSON array
update onward_queue set open = 1, reopens_at = null
 where open = 0 and paused = 0 and name in (select value from json_each(:names))
