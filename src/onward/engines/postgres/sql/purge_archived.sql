-- Remove archived jobs; answers those that were there, and the status that each had.
select seq, queue, id, status from onward.purge_archived($1::bigint[])
