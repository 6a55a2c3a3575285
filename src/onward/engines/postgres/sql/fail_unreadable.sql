-- Fail claimed jobs whose rows cannot be read.
-- $1 now, $2 channel, $3 seqs, $4 claim_nos, $5 reasons, $6 failures (JSON)
select seq, claim_no from onward.settle(
  $1::bigint, $2::text, '{}', '{}', '{}',
  $3::text::bigint[], $4::text::bigint[], array_fill('failed'::text, array[cardinality($3::text::bigint[])]), $5::text::text[],
  $6::text::text[], '{}', '{}', '{}', '{}', '{}', '{}')
