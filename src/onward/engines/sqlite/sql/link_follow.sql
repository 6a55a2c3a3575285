-- Let jobs be followed, so that their end is told.
-- :links  as for link_add; :batch
update onward_job set followed = 1
 where id in (select value ->> 2 from json_each(:links)) and batch = :batch and followed = 0
