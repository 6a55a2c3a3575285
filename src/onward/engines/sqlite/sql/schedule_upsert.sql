-- Make a schedule or change it. One that goes on in the same trigger keeps its next turn.
insert into onward_schedule (name, job, trigger, missed, paused, next_at, created_at, updated_at)
values (:name, :job, :trigger, :missed, :paused, :next_at, :now, :now)
on conflict (name) do update
   set next_at = case when excluded.paused = 0 and paused = 0 and trigger = excluded.trigger then next_at else excluded.next_at end,
       job = excluded.job, trigger = excluded.trigger, missed = excluded.missed, paused = excluded.paused,
       updated_at = max(excluded.updated_at, updated_at + 1)
returning name, job, trigger, missed, paused, next_at, last_at
