-- Queues whose jobs are kept for another time than workers ask for.
select name, lease from onward.queue where lease is not null
