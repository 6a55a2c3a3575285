-- Put messages in. What they all have in common comes once.
-- $1 queues, $2 payloads, $3 headers, $4 delays, $5 times, $6 notification or null
select number, msg_id, unknown from onward.enqueue(
  $1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text) order by number
