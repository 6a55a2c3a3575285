-- Let jobs wait for others.
-- :links  JSON array of [child, place, parent]; :batch
insert into onward_link (child, place, parent, batch)
select value ->> 0, value ->> 1, value ->> 2, :batch from json_each(:links)
