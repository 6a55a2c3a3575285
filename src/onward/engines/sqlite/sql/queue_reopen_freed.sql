-- Let claims look at limited queues again in which a concurrency permit has become free.
-- :names  JSON array
update onward_queue set open = 1, reopens_at = null
 where open = 0 and paused = 0 and global_concurrency is not null and name in (select value from json_each(:names))
