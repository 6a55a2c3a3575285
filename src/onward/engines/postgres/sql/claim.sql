-- Take jobs. Answers one row: see the type onward.claim_result.
select * from onward.claim(
  $1::bigint, $2::text, $3::text::text[], $4::text::text[], $5::integer, $6::integer, $7::integer, $8::bigint, $9::text,
  $10::bigint, $11::text)
