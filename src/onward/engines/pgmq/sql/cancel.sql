-- Take messages back.
-- $1 queues, $2 ids, $3 reason, $4 columns
select queue, msg_id, before from onward.cancel($1::text[], $2::bigint[], $3::text, $4::text)
