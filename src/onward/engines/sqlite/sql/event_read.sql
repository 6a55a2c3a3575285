-- Read events after one, in the order of commit.
-- :no; :words  JSON array, null: all; :limit
select no, at, event, queue, id, attempts, number, said, stack from onward_event
 where no > :no and event <> '' and (:words is null or event in (select value from json_each(:words)))
 order by no limit :limit
