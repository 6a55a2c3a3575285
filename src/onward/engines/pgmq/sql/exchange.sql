-- Settle and claim in one round trip.
-- Completed: $1 queues, $2 read counts, $3 workers, $4 lists of ids. Other outcomes: $5 queues, $6 ids, $7 read counts, $8 ends,
-- $9 delays, $10 notes, $11 failures. $12 columns, $13 whether what is completed is deleted.
-- Claim: $14 worker, $15 everything, $16 names, $17 prefixes, $18 the queue served last, $19 slots, $20 lease, $21 alone,
-- $22 most reads, $23 hows, $24 batches that are done
select kind, number, read_ct, waited, payload, note, crashes from onward.exchange(
  $1::text::text[], $2::text::integer[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::bigint[],
  $7::text::integer[], $8::text::text[], $9::text::bigint[], $10::text::text[], $11::text::text[], $12::text, $13::boolean,
  $14::text, $15::boolean, $16::text::text[], $17::text::text[], $18::text, $19::integer, onward.span($20::bigint),
  $21::boolean, $22::integer, $23::text::jsonb, $24::text::bigint[])
