-- Note that events are recorded no longer.
update onward_event_log set is_on = 0
