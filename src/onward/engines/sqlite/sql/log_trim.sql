-- Keep the newest :kept lines of a job's log.
delete from onward_log
 where seq = :seq and no <= (select max(no) from onward_log where seq = :seq) - :kept
