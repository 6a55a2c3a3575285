-- Add jobs that have keys, no two of them the same; answers for each what became of it.
select enqueue_status, queue, id from onward.enqueue_keyed(
  $1::bigint, $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::bigint[], $9::bigint[],
  $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::integer[], $15::text[], $16::text[], $17::text, $18::text,
  $19::bigint[], $20::text[], $21::bytea[], $22::text[], $23::bytea[], $24::bytea[], $25::bigint[], $26::bigint[])
