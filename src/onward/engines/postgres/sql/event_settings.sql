-- Change whether events are recorded always, and how many are kept; null: as it is.
update onward.event_log set always = coalesce($1::boolean, always), max_events = coalesce($2::bigint, max_events)
