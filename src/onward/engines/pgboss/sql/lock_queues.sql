-- Let nobody else create a queue until the transaction ends: pg-boss inserts into this table first. Not pg-boss's own advisory lock,
-- which any role that can connect can take.
lock table pgboss.queue in share row exclusive mode
