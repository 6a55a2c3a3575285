-- Note that somebody listens.
-- :until
update onward_event_log set listened_until = max(listened_until, :until)
