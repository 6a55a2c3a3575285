-- Acquire the lease of an event cursor, unless another holder has it; one that is new, or is reset, begins at :cursor. Returns
-- where it is, if it was acquired.
-- :name, :holder, :cursor, :reset (0 or 1), :until, :now
insert into onward_event_cursor (name, cursor, holder, until) values (:name, :cursor, :holder, :until)
on conflict (name) do update
   set holder = excluded.holder, until = excluded.until, cursor = iif(:reset, excluded.cursor, cursor)
 where holder = excluded.holder or until <= :now
    -- Longer than a lease of now: the clock has been set back. Who only lets go (a lease of nothing) takes no other's.
    or (:until > :now and until > :until + 1000000)
returning cursor
