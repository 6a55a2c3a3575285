-- Change whether events are recorded always, and how many are kept; null: as it is.
-- :always (0 or 1), :kept
update onward_event_log set always = coalesce(:always, always), kept = coalesce(:kept, kept)
