-- Take jobs of one queue that has nothing said of it; a row without a seq: it has.
select * from onward.claim_queue($1::bigint, $2::text, $3::text, $4::integer, $5::bigint)
