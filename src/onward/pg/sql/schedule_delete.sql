-- Remove a schedule.
-- $1 name
delete from onward.schedule where name = $1::text returning name
