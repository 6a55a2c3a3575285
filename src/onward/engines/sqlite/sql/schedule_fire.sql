-- Set a schedule's next turn, unless somebody else has, or has changed or paused it.
update onward_schedule
   set next_at = :next_at, last_at = :last_at, updated_at = max(:now, updated_at + 1)
 where name = :name and next_at = :due and trigger = :trigger
