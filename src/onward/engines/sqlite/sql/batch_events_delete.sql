-- Remove batch events that have been processed.
-- :numbers  JSON array
delete from onward_batch_event where no in (select value from json_each(:numbers))
