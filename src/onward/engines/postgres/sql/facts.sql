-- What there is to know of the server and of our tables, as one row. $1 the schema.
select current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
       onward.micros(clock_timestamp()), current_setting('full_page_writes'), current_setting('autovacuum'),
       current_setting('default_transaction_isolation'),
       extract(epoch from current_setting('statement_timeout')::interval)::float8,
       (select age(datfrozenxid) from pg_database where datname = current_database()),
       (select count(*) from pg_stat_activity where backend_type = 'client backend'),
       current_setting('max_connections')::integer,
       (select n_live_tup from pg_stat_user_tables where relid = 'onward.job'::regclass),
       (select n_dead_tup from pg_stat_user_tables where relid = 'onward.job'::regclass),
       pg_table_size('onward.job'::regclass),
       (select greatest(reltuples, 0)::bigint from pg_class where oid = 'onward.history_day_other'::regclass),
       array(select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
              where i.relnamespace = $1::text::regnamespace and x.indisvalid)
