-- Remove a schedule.
delete from onward_schedule where name = :name
