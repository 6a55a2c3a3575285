-- What a queue says for jobs that say nothing, and whether claims look at it.
select open, max_attempts, backoff from onward_queue where name = :name
