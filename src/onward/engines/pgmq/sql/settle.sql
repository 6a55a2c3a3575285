-- Record how runs ended; answers the claims that were lost.
-- $1 to $13 as in exchange.sql
select queue, msg_id, read_ct
  from onward.complete($1::text::text[], $2::text::integer[], $3::text::text[], $4::text::text[], $12::text, $13::boolean)
union all
select queue, msg_id, read_ct
  from onward.settle($5::text::text[], $6::text::bigint[], $7::text::integer[], $8::text::text[], $9::text::bigint[],
                     $10::text::text[], $11::text::text[], $12::text)
