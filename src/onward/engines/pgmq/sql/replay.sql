-- Bring ended messages back from the archive.
-- $1 queues, $2 ids, $3 columns
select queue, msg_id, before from onward.replay($1::text[], $2::bigint[], $3::text)
