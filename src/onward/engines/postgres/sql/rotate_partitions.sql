-- Make parts of the history for the days to come, and drop those that are no longer kept.
select onward.rotate_partitions($1::bigint, $2::bigint, $3::text)
