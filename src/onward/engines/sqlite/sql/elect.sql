-- Become the leader if there is none: a new term, with a higher number.
insert into onward_leader (one, number, leader_id, until, renewed_at) values (1, 1, :candidate, :now + :lease_us, :now)
on conflict (one) do update
   set number = number + 1, leader_id = excluded.leader_id, until = excluded.until, renewed_at = excluded.renewed_at
 where onward_leader.until <= :now
    -- The clock has been set back: a dead leader would hold its term until the old time comes again.
    or onward_leader.renewed_at > :now + 1000000
