-- Remove records older than :before, some at a time.
delete from onward_audit where no in (select no from onward_audit where at < :before order by at limit :limit)
