-- Tell a worker what to do.
-- :command  'quiet' or 'stop'; null: to claim jobs
update onward_worker set command = :command where id = :id
