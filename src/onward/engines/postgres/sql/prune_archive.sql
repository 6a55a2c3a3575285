-- Remove archived jobs whose time is over.
select onward.prune_archive($1::bigint, $2::bigint, $3::text, $4::integer)
