-- A job that somebody wants to wait for and that is not there.
select value ->> 2 from json_each(:dependencies)
 where not exists (select 1 from onward_job where id = value ->> 2 and batch = :batch) limit 1
