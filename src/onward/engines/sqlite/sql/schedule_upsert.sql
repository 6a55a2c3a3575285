-- Make a schedule or change it. One that goes on in the same rhythm keeps its next turn.
insert into onward_schedule (name, job, rhythm, missed, paused, next_at, created_at, updated_at)
values (:name, :job, :rhythm, :missed, :paused, :next_at, :now, :now)
on conflict (name) do update
   set next_at = case when excluded.paused = 0 and paused = 0 and rhythm = excluded.rhythm then next_at else excluded.next_at end,
       job = excluded.job, rhythm = excluded.rhythm, missed = excluded.missed, paused = excluded.paused,
       updated_at = max(excluded.updated_at, updated_at + 1)
returning name, job, rhythm, missed, paused, next_at, last_at
