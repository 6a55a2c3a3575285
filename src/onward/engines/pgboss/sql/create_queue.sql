-- Make a queue, by pg-boss's own function; of one that is there, nothing changes.
-- $1 name, $2 options
select pgboss.create_queue($1::text, $2::text::jsonb)                                 -- if function.jsonb
select pgboss.create_queue($1::text, $2::text::json)                                  -- unless function.jsonb
