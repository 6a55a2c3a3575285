-- Transactions that have written jobs and are open: which there are, or which are left of $1.
select virtualtransaction from pg_locks
 where locktype = 'relation' and relation = 'onward.job'::regclass and granted and mode = 'RowExclusiveLock'
   and database = (select oid from pg_database where datname = current_database()) and pid is distinct from pg_backend_pid()
   and ($1::text[] is null or virtualtransaction = any ($1::text[]))
