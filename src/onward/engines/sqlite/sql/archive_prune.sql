-- Remove archived jobs whose time is over.
-- :limit, :number, :leader_id  the leader's term; :now
-- Relies on: onward_archive_until.
delete from onward_archive
 where seq in (select seq from onward_archive where until is not null and until <= :now order by until limit :limit)
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
