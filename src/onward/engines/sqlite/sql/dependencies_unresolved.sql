-- Unresolved dependencies on jobs that have ended, with how each ended and what that means for the waiting job, if it still waits.
-- :jobs  JSON array of ids; :limit
-- Relies on: onward_dependency_unresolved.
select d.job, d.position, w.seq, w.batch, coalesce(e.status, 'cancelled') = 'completed' or w.on_dependency_failure = 'run',
       iif(w.status = 'blocked', w.on_dependency_failure, null)
  from (select distinct value as id from json_each(:jobs)) j
  join onward_dependency d indexed by onward_dependency_unresolved on d.depends_on = j.id and d.done = 0
  join onward_job w on w.id = d.job
  left join onward_job e on e.id = d.depends_on
 limit :limit
