-- Record that handlers start; answers the claims that were lost.
select seq, claim_no from onward.start($1::bigint, $2::text::bigint[], $3::text::bigint[])
