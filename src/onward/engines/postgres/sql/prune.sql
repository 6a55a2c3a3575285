-- Archive ended jobs that are no longer kept.
select onward.prune($1::bigint, $2::bigint, $3::text, $4::integer)
