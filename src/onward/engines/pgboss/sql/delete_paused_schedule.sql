-- Remove a paused schedule.
-- $1 queue, $2 key
delete from onward.paused_schedule where queue = $1::text and key = $2::text returning queue
