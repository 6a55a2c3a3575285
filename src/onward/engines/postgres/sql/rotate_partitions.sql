-- Make parts of the history for the days to come, archive a part of those that are no longer kept, and drop archived ones.
select archived, more from onward.rotate_partitions($1::bigint, $2::bigint, $3::text, $4::integer)
