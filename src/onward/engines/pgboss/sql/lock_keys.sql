-- Let nobody else of ours add a job with one of these keys until the transaction ends. In order, so that two never wait for each other.
-- $1 keys, sorted
select onward.lock_keys($1::bigint[])
