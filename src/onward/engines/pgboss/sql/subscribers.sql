-- Which queues get a job for an event.
-- $1 event
select name from pgboss.subscription where event = $1::text order by name
