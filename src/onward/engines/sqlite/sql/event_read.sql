-- Read events after one, in the order of commit.
-- :no; :event_types  JSON array, null: all; :limit
select no, at, event, queue, id, type, org_id, attempts, number, message, traceback from onward_event
 where no > :no and event <> '' and (:event_types is null or event in (select value from json_each(:event_types)))
 order by no limit :limit
