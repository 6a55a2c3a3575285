-- Become the leader if there is none: a new term, with a higher number.
-- $1 now, $2 candidate, $3 lease
insert into onward.leader as l (number, leader_id, until, renewed_at)
values (1, $2::text, coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) + onward.to_interval($3::bigint),
        coalesce(onward.to_timestamp($1::bigint), clock_timestamp()))
on conflict (one) do update
   set number = l.number + 1, leader_id = excluded.leader_id, until = excluded.until, renewed_at = excluded.renewed_at
 where l.until <= coalesce(onward.to_timestamp($1::bigint), clock_timestamp())
    -- The clock has gone back: a dead leader would hold its term until the old time comes again.
    or l.renewed_at > coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) + interval '1 second'
returning number, leader_id, onward.to_micros(until)
