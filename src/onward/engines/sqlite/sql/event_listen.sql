-- Note that somebody listens.
-- :until
update onward_event_log set heard_until = max(heard_until, :until)
