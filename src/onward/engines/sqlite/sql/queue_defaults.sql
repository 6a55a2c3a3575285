-- What jobs of a queue get that do not say otherwise.
select max_attempts, backoff from onward_queue where name = :name
