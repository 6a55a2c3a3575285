-- The file in which the jobs were confirmed to run, if any, and whether there is anything to run: live jobs or schedules.
select (select home from onward_identity),
       exists (select 1 from onward_job where completed_at is null) or exists (select 1 from onward_schedule where paused = 0)
