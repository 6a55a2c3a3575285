-- Have a queue get no more jobs for events of a name; answers it if it got some.
-- $1 event, $2 queue
delete from pgboss.subscription where event = $1::text and name = $2::text returning name
