-- Forget which jobs of a batch waited for which.
delete from onward_link where batch = :name
