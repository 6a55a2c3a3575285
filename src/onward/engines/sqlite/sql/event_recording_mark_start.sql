-- Note since which event they are.
update onward_event_log set is_on = 1, on_at = :now, on_no = (select max(no) from onward_event)
