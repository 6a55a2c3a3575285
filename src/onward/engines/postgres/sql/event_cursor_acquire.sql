-- Hold an event cursor, unless somebody else does; one that is new, or put there anew, stands at the cursor given. Answers where it
-- stands, if it is held.
-- $1 now, $2 name, $3 holder, $4 cursor, $5 anew, $6 for how long
insert into onward.event_cursor as b (name, cursor, holder, until)
values ($2::text, $4::text, $3::text, coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) + onward.to_interval($6::bigint))
on conflict (name) do update
   set holder = excluded.holder, until = excluded.until, cursor = case when $5::boolean then excluded.cursor else b.cursor end
 where b.holder = excluded.holder or b.until <= coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
returning b.cursor
