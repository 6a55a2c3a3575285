-- Remove jobs, with their keys and logs. A held one stays.
-- :seqs  JSON array
delete from onward_job where status not in ('claimed', 'running') and seq in (select value from json_each(:seqs))
