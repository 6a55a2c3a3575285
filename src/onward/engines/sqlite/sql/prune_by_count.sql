-- Finished jobs beyond the number that a queue keeps, oldest first to go, as one row of JSON.
-- :name, :states  JSON array; :kept, :limit
-- Relies on: onward_job_prune.
select json_group_array(seq) from (
  select seq from onward_job indexed by onward_job_prune
   where completed_at is not null and queue = :name and state in (select value from json_each(:states))
   order by completed_at desc, seq desc limit :limit offset :kept)
