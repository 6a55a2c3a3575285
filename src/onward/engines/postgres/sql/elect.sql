-- Become the leader if there is none: a new term, with a higher number.
-- $1 now, $2 candidate, $3 lease
insert into onward.leader as l (number, leader_id, until)
values (1, $2::text, coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) + onward.to_interval($3::bigint))
on conflict (one) do update
   set number = l.number + 1, leader_id = excluded.leader_id, until = excluded.until
 where l.until <= coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
returning number, leader_id, onward.to_micros(until)
