-- All schedules.
select name, job::text, trigger::text, missed, paused, onward.to_micros(next_at), onward.to_micros(last_at)
  from onward.schedule order by name
