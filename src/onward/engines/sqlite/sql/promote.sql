-- Make due jobs ready, as of when they were due.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
update onward_job
   set status = 'pending', ready_at = next_run_at, next_run_at = null, updated_at = max(:now, updated_at + 1)
 where status = 'scheduled' and seq in (select value from json_each(:seqs))
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
