-- Mark dependencies as resolved: the job knows how the one it depends on has ended.
-- :dependencies  JSON array of [job, position]
update onward_dependency set done = 1
  from (select value ->> 0 as of_job, value ->> 1 as of_position from json_each(:dependencies))
 where job = of_job and position = of_position
