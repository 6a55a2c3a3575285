-- Remove archived jobs, because somebody said so.
-- :seqs  JSON array
delete from onward_archive where seq in (select value from json_each(:seqs))
