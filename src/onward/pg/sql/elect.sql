-- Become the leader if there is none: a new term, with a higher number.
-- $1 now, $2 candidate, $3 lease
insert into onward.leader as l (number, leader_id, until)
values (1, $2::text, coalesce($1::timestamptz, clock_timestamp()) + $3::interval)
on conflict (one) do update
   set number = l.number + 1, leader_id = excluded.leader_id, until = excluded.until
 where l.until <= coalesce($1::timestamptz, clock_timestamp())
returning number, leader_id, until
