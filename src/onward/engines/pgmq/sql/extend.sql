-- Extend the timeouts of what is held; answers what is not held any more.
-- $1 queues, $2 ids, $3 read counts, $4 stamps, $5 leases, $6 columns
select queue, msg_id, read_ct, stamp, was_cancelled
  from onward.extend($1::text[], $2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::text)
