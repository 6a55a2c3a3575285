-- Note that jobs are about to be pruned: of the time in which they ended, not all ends are known any longer.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
update onward_event_log
   set pruned_at = max(pruned_at, (select max(completed_at) from onward_job where seq in (select value from json_each(:seqs))))
 where exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
