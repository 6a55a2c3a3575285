-- Remove messages that nobody holds.
-- $1 queues, $2 ids
select queue, msg_id, before from onward.delete($1::text[], $2::bigint[])
