-- All schedules.
select name, job::text, rhythm::text, missed, paused, onward.to_micros(next_at), onward.to_micros(last_at)
  from onward.schedule order by name
