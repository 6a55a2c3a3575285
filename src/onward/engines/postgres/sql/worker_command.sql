-- Tell a worker what to do; answers its id, if it is registered.
-- $1 id, $2 'quiet' or 'stop'; null: to claim jobs
update onward.worker set command = $2::text where id = $1::text returning id
