-- Give ended jobs a new life; answers those that have one, and the status that each had.
select seq, queue, id, before from onward.replay_many($1::bigint, $2::text, $3::bigint[])
