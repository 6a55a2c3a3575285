-- Remove what has been rolled up.
delete from onward_usage
 where grain = :grain - 1 and at < :until
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
