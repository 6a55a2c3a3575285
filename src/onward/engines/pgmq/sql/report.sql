-- Write down the progress of a message that is held.
-- $1 queue, $2 id, $3 read count, $4 what to write
select onward.report($1::text, $2::bigint, $3::integer, $4::text::jsonb)
