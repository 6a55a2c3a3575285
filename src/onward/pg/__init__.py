"""What engines on PostgreSQL share: the way to a database, connections, plans, listening, the caller's transaction.

Three engines stand on it: our own schema, pg-boss's and PGMQ's. Nothing here knows what a job is.
"""
