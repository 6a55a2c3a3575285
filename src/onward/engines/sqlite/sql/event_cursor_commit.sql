-- Move an event cursor on, if this holder has it.
update onward_event_cursor set cursor = :cursor where name = :name and holder = :holder
