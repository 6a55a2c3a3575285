-- Batches, the newest first.
-- :names  JSON array, or null for all; :before  the seq of the last one seen; :limit
select name, queue, sealed, total, completed, failed, cancelled, created_at, finished_at, seq
  from onward_batch
 where (:names is null or name in (select value from json_each(:names))) and (:before is null or seq < :before)
 order by seq desc limit :limit
