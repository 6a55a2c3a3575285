-- Note that whatever cannot be seen yet is recorded.
update onward.event_log set is_complete = true, complete_since = pg_current_snapshot() where not is_complete
