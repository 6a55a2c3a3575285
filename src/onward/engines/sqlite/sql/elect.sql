-- Become the leader if there is none: a new term, with a higher number.
insert into onward_leader (one, number, leader_id, until) values (1, 1, :candidate, :now + :lease_us)
on conflict (one) do update
   set number = number + 1, leader_id = excluded.leader_id, until = excluded.until
 where onward_leader.until <= :now
