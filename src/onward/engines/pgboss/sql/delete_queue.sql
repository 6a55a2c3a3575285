-- Remove a queue and its jobs, by pg-boss's own function.
-- $1 name
select pgboss.delete_queue($1::text)
