-- Say that a worker is alive and keeps its jobs; answers those that it holds no longer, and a row with what it has been told, if anything.
select seq, claim_no, was_cancelled, command from onward.heartbeat(
  $1::bigint, $2::text, $3::text, $4::integer, $5::text, $6::text[], $7::text[], $8::text::bigint[], $9::text::bigint[])
