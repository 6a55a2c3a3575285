-- Settle, start and claim in one round trip.
select * from onward.exchange(
  $1::bigint, $2::text, $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
  $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::text[], $14::text[], $15::bigint[], $16::bigint[],
  $17::text, $18::text[], $19::text[], $20::integer, $21::integer, $22::bigint, $23::text, $24::bigint)
