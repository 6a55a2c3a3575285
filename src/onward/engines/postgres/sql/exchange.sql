-- One round trip: outcomes in, then starts, then new claims out. Answers one row: the claims that were lost, as JSON, and then
-- what was claimed: see the type onward.claim_result.
select lost::text, (claimed).jobs, (claimed).has_suspects, (claimed).retry_after, (claimed).next_name, (claimed).turn_left,
       (claimed).is_shared_load, (claimed).claim_no
  from onward.exchange(
  $1::bigint, $2::text,
  $3::text::bigint[], $4::text::bigint[], $5::text::text[],
  $6::text::bigint[], $7::text::bigint[], $8::text::text[], $9::text::text[], $10::text::text[],
  $11::text::bigint[], $12::text::bigint[], $13::text::text[], $14::text::bigint[], $15::text::text[], $16::text::text[],
  $17::text::bigint[], $18::text::bigint[],
  $19::text, $20::text::text[], $21::text::text[], $22::integer, $23::integer, $24::integer, $25::bigint, $26::text,
  $27::bigint, $28::text)
