-- Tell whoever listens.
-- $1 notification
select pg_notify($$onward_pgmq$$, $1::text)
