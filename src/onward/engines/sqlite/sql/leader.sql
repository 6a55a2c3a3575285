-- The present or last term.
select number, leader_id, until from onward_leader
