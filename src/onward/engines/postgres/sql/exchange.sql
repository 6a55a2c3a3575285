-- One round trip: outcomes in, then starts, then new claims out, in the order in which they stand here. What is settled comes
-- before what is picked: picking leaves locks on rows that it passes over, and two who picked first and settled then would
-- wait for each other. See the type onward.answer for what comes back.
select null::integer, seq, claim_no, null::text, null::text, null::text, null::text, null::integer, null::boolean, null::bigint,
       null::integer, null::boolean, null::text, null::integer, null::text, null::float8, null::float8, null::boolean, null::float8,
       null::text, null::bigint
  from onward.settle(
    $1::bigint, $2::text, $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::text[], $14::text[])
union all
select null::integer, seq, claim_no, null::text, null::text, null::text, null::text, null::integer, null::boolean, null::bigint,
       null::integer, null::boolean, null::text, null::integer, null::text, null::float8, null::float8, null::boolean, null::float8,
       null::text, null::bigint
  from onward.start($1::bigint, $15::bigint[], $16::bigint[])
union all
select * from onward.claim(
  $1::bigint, $17::text, $18::text[], $19::text[], $20::integer, $21::integer, $22::bigint, $23::text, $24::bigint)
