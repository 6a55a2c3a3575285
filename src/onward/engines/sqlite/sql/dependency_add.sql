-- Let jobs wait for others.
-- :dependencies  JSON array of [job, position, depends_on]; :batch
insert into onward_dependency (job, position, depends_on, batch)
select value ->> 0, value ->> 1, value ->> 2, :batch from json_each(:dependencies)
