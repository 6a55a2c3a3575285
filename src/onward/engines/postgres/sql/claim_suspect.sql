-- Take one suspect, to run alone.
select * from onward.claim_suspect($1::bigint, $2::text, $3::text::text[], $4::text::text[], $5::bigint)
