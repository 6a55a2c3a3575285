-- Record how runs ended; answers the claims that were lost.
select seq, claim_no from onward.settle(
  $1::bigint, $2::text, $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
  $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::text[], $14::text[])
