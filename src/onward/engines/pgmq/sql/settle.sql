-- Record how runs ended; answers the claims whose outcome was recorded.
-- $1 queues, $2 ids, $3 read counts, $4 ends, $5 delays, $6 notes, $7 failures, $8 columns
select queue, msg_id, read_ct from onward.settle(
  $1::text[], $2::bigint[], $3::integer[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text)
