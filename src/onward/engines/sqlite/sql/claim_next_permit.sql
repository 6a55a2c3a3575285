-- When the next rate permit of these queues comes, or an earlier moment at which to ask again: it looks at the next few permits
-- of all queues only, or ten thousand limited queues of others would be read through by every claim that finds too little.
-- :ranges  JSON array of [first name, name after the last]
-- Relies on: onward_queue_reopen.
select reopens_at
  from (select name, reopens_at, row_number() over (order by reopens_at) as position
          from onward_queue indexed by onward_queue_reopen where reopens_at is not null order by reopens_at limit 32) q
 where position = 32 or exists (select 1 from json_each(:ranges) r where q.name >= r.value ->> 0 and q.name < r.value ->> 1)
 order by reopens_at limit 1
