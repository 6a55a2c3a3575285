-- Add the end of jobs that had ended before another job depended on them.
-- :dependencies  as for dependency_add; :batch
insert into onward_batch_event (batch, job)
select distinct :batch, id from onward_job
 where id in (select value ->> 2 from json_each(:dependencies)) and completed_at is not null
