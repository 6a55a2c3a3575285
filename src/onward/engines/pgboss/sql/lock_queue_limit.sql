-- Lock the limits of a queue until the transaction ends.
-- $1 queue
-- -> whether there are any, and whether they are locked now
select is_limited, is_locked from onward.lock_queue_limit($1::text)
