-- Give permits of a queue back, and take fewer: there were not as many jobs.
-- $1 from take_queue_permits, $2 queue, $3 how many are needed, $4 the time in microseconds
with given as materialized (select onward.give_up_permits($1::text::jsonb))
select case when $3::integer > 0 then (select permitted from onward.take_queue_permits($2::text, $3, 0, $4::bigint)) end from given
