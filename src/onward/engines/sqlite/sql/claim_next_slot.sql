-- When the next rate slot of these queues comes.
-- :ranges  JSON array of [first name, name after the last]
-- Relies on: onward_queue_reopen.
select q.reopens_at from onward_queue q indexed by onward_queue_reopen
 where q.reopens_at is not null
   and exists (select 1 from json_each(:ranges) r where q.name >= r.value ->> 0 and q.name < r.value ->> 1)
 order by q.reopens_at limit 1
