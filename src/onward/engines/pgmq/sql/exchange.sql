-- Settle and claim in one round trip.
-- $1 queues, $2 ids, $3 read counts, $4 ends, $5 delays, $6 notes, $7 failures, $8 columns, $9 worker, $10 everything, $11 names,
-- $12 prefixes, $13 the queue served last, $14 slots, $15 lease, $16 alone, $17 most reads, $18 hows, $19 batches that are done
select queue, msg_id, read_ct, batch, waited, payload, note, lease, max_attempts, backoff, is_suspect, crashes, last_name
  from onward.exchange(
  $1::text[], $2::bigint[], $3::integer[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text, $9::text,
  $10::boolean, $11::text[], $12::text[], $13::text, $14::integer, onward.span($15::bigint), $16::boolean, $17::integer,
  $18::text::jsonb, $19::bigint[])
