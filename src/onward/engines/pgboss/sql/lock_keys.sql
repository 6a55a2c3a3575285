-- Let nobody else of ours add a job with one of these keys until the transaction ends. In order, so that two never wait for each other.
-- $1 keys, sorted
select pg_advisory_xact_lock(k.key) from unnest($1::bigint[]) k (key)
