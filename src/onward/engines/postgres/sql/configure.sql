-- Change what a queue is told to do.
select onward.configure($1::bigint, $2::text, $3::text, $4::text::jsonb)
