-- Hold a bookmark, unless somebody else does; one that is new, or put there anew, stands at the cursor given. Answers where it
-- stands, if it is held.
-- :name, :holder, :cursor, :anew (0 or 1), :until, :now
insert into onward_bookmark (name, cursor, holder, until) values (:name, :cursor, :holder, :until)
on conflict (name) do update
   set holder = excluded.holder, until = excluded.until, cursor = iif(:anew, excluded.cursor, cursor)
 where holder = excluded.holder or until <= :now
returning cursor
