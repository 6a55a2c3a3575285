-- Change whether events are recorded always, and how many are kept; null: as it is.
-- :always (0 or 1), :max_events
update onward_event_log set always = coalesce(:always, always), max_events = coalesce(:max_events, max_events)
