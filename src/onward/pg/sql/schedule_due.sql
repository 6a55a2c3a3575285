-- The schedules whose turn has come, those that have waited longest first; with each row the time that it is, and when the turn
-- of the next one comes. A row without a name stands for none.
-- $1 now, $2 limit
with clock (now) as materialized (select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()))
select s.name, s.job::text, s.trigger::text, s.missed, s.paused, onward.to_micros(s.next_at), onward.to_micros(s.last_at),
       onward.to_micros(c.now), (select onward.to_micros(min(l.next_at)) from onward.schedule l where l.next_at > c.now)
  from clock c
  left join lateral (select * from onward.schedule d where d.next_at <= c.now order by d.next_at, d.name limit $2::bigint) s on true
