-- Remove jobs that nobody holds.
-- $1 queues, $2 ids
delete from pgboss.job j using unnest($1::text[], $2::uuid[]) p (name, id)
 where j.name = p.name and j.id = p.id and j.name = any ($1::text[]) and j.id = any ($2::uuid[]) and j.state <> 'active'
returning j.name, j.id::text
