-- Tell whoever listens, here and in Node, that these queues have work.
-- $1 channel, $2 queues
select pg_notify($1::text, q.name) from unnest($2::text[]) q (name)
