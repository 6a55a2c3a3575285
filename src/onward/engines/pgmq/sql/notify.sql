-- Tell whoever listens.
-- $1 notice
select pg_notify($$onward_pgmq$$, $1::text)
