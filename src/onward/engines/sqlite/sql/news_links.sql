-- The links by which the end of jobs is to be told, with how each ended and what the child, if it waits still, makes of it.
-- :jobs  JSON array of ids; :limit
-- Relies on: onward_link_open.
select l.child, l.place, c.seq, c.batch, coalesce(p.state, 'cancelled') = 'completed' or c.on_failure = 'continue',
       iif(c.state = 'blocked', c.on_failure, null)
  from (select distinct value as id from json_each(:jobs)) j
  join onward_link l indexed by onward_link_open on l.parent = j.id and l.done = 0
  join onward_job c on c.id = l.child
  left join onward_job p on p.id = l.parent
 limit :limit
