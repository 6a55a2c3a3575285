-- Take messages.
-- $1 columns, $2 worker, $3 all queues, $4 names, $5 prefixes, $6 the queue served last, $7 slots, $8 lease, $9 isolated,
-- $10 most reads, $11 read modes, $12 batches that are done, $13 bytes that the messages may have
select kind, number, read_ct, wait_seconds, payload, header, crashes, stamp from onward.claim(
  $1::text, $2::text, $3::boolean, $4::text::text[], $5::text::text[], $6::text, $7::integer, onward.to_interval($8::bigint),
  $9::boolean, $10::integer, $11::text::jsonb, $12::text::bigint[], $13::bigint)
