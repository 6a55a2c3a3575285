-- The file in which the jobs were confirmed to run, if any, and whether there are live jobs.
select (select home from onward_identity), exists (select 1 from onward_job where completed_at is null)
