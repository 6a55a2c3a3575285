-- Keep the lanes in order; answers how many jobs had been out of sight.
select onward.tend($1::bigint, $2::text, $3::bigint, $4::text, $5::boolean)
