-- Take jobs. Answers claims, then one row of facts: see the type onward.answer.
select * from onward.claim($1::bigint, $2::text, $3::text[], $4::text[], $5::integer, $6::integer, $7::bigint, $8::text, $9::bigint)
