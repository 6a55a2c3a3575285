-- Finished jobs beyond the number that a queue keeps, oldest first to go, as one row of JSON.
-- :name, :statuses  JSON array; :kept, :limit
-- Relies on: onward_job_prune.
select json_group_array(seq) from (
  select seq from onward_job indexed by onward_job_prune
   where completed_at is not null and queue = :name and status in (select value from json_each(:statuses))
   order by completed_at desc, seq desc limit :limit offset :kept)
