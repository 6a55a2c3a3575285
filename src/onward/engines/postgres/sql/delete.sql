-- Remove jobs that nobody holds; answers those that were, and the status that each had.
select seq, queue, id, before from onward.delete_many($1::bigint[])
