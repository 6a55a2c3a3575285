-- Take jobs back; answers those that were, and the status that each had.
select seq, queue, id, before from onward.cancel_many($1::bigint, $2::text, $3::bigint[], $4::text, $5::boolean)
