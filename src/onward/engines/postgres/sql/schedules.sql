-- All schedules.
select name, job::text, rhythm::text, missed, paused, onward.micros(next_at), onward.micros(last_at)
  from onward.schedule order by name
