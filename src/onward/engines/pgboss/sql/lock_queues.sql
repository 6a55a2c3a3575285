-- The lock that pg-boss takes to make a queue.
-- $1 schema
select pg_advisory_xact_lock(
  ('x' || encode(sha224((current_database() || '.pgboss.' || $1::text || 'create-queue')::bytea), 'hex'))::bit(64)::bigint)
