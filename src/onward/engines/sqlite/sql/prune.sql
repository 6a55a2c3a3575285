-- Remove finished jobs that are no longer kept.
-- :seqs  JSON array; :number, :leader_id  the leader's term; :now
delete from onward_job
 where completed_at is not null and seq in (select value from json_each(:seqs))
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
