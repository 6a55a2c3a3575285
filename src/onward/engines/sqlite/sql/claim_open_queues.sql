-- What a claim needs to know before it picks, as one row:
-- the open queues from a name on, whether a rate permit has come due, whether a suspect waits.
-- :ranges  JSON array of [first name, name after the last]; :first, :limit, :now
-- Relies on: onward_queue_open, onward_queue_reopen, onward_job_suspect.
select (select json_group_array(json_array(name, weight, lease_us, global_concurrency, rate_count, rate_period_us, rate_burst,
                                           next_permit_at))
          from (select q.* from json_each(:ranges) r
                  join onward_queue q indexed by onward_queue_open
                    on q.open = 1 and q.name >= max(:first, r.value ->> 0) and q.name < r.value ->> 1
                 order by q.name limit :limit)),
       exists (select 1 from onward_queue where reopens_at <= :now),
       exists (select 1 from json_each(:ranges) r
                 join onward_job j indexed by onward_job_suspect
                   on j.status = 'pending' and j.suspect = 1 and j.queue >= r.value ->> 0 and j.queue < r.value ->> 1)
