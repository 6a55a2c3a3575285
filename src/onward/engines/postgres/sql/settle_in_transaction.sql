-- Record how runs ended in a caller's transaction; answers the claims that were lost, or the isolation level that is refused.
select seq, claim_no, refused from onward.settle_in_transaction(
  $1::bigint, $2::text,
  $3::text::bigint[], $4::text::bigint[], $5::text::text[],
  $6::text::bigint[], $7::text::bigint[], $8::text::text[], $9::text::text[], $10::text::text[],
  $11::text::bigint[], $12::text::bigint[], $13::text::text[], $14::text::bigint[], $15::text::text[], $16::text::text[])
