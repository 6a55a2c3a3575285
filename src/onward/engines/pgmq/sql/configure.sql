-- Change what a queue is told to do; makes it if there is none. Answers the queue that is in the way, if one is.
-- $1 queue, $2 settings that change
select onward.configure($1::text, $2::text::jsonb)
