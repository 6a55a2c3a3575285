-- Write down the progress of a message that is held.
-- $1 queue, $2 id, $3 read count, $4 stamp, $5 what to write, $6 columns
select onward.report($1::text, $2::bigint, $3::integer, $4::bigint, $5::text::jsonb, $6::text)
