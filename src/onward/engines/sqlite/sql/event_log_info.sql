-- The state of the event log: also the first and the last of its events, and when the first happened.
select always, max_events, is_on, on_no, on_at, listened_until, pruned_at,
       (select min(no) from onward_event), (select max(no) from onward_event),
       (select at from onward_event order by no limit 1)
  from onward_event_log
