-- Let go of the oldest events, the newest never.
-- :limit
delete from onward_event
 where no <= min((select min(no) from onward_event) + :limit - 1,
                 (select max(no) from onward_event) - (select max_events from onward_event_log))
