-- Mark jobs as having dependents, so that their end adds a batch event.
-- :dependencies  as for dependency_add; :batch
update onward_job set has_dependents = 1
 where id in (select value ->> 2 from json_each(:dependencies)) and batch = :batch and has_dependents = 0
