-- Note that whatever cannot be seen yet is recorded.
update onward.event_log set settled = true, whole_since = pg_current_snapshot() where not settled
