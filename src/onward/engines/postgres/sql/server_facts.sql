-- What there is to know of the server, of what holds for our role here, and of our tables, as one row. $1 the schema.
select current_setting('server_version'), onward.to_micros(clock_timestamp()),
       quote_ident(session_user), quote_ident(current_database()), quote_ident($1::text),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       pg_is_in_recovery(), current_setting('transaction_read_only'),
       current_setting('autovacuum'), current_setting('track_counts'),
       extract(epoch from current_setting('statement_timeout')::interval)::float8,
       -- A setting since PostgreSQL 17.
       coalesce(extract(epoch from current_setting('transaction_timeout', true)::interval), 0)::float8,
       extract(epoch from current_setting('lock_timeout')::interval)::float8,
       extract(epoch from current_setting('idle_session_timeout')::interval)::float8,
       (select age(datfrozenxid) from pg_database where datname = current_database()),
       -- Of what kind a session is that we may not look at, we are not told.
       (select count(*) from pg_stat_activity where datid is not null and coalesce(backend_type, 'client backend') = 'client backend'),
       current_setting('max_connections')::integer,
       (select n_live_tup from pg_stat_user_tables where relid = 'onward.job'::regclass),
       (select n_dead_tup from pg_stat_user_tables where relid = 'onward.job'::regclass),
       pg_table_size('onward.job'::regclass),
       (select greatest(reltuples, 0)::bigint from pg_class where oid = 'onward.history_day_other'::regclass),
       -- Those of a part of a table come and go with it.
       array(select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
              where i.relnamespace = $1::text::regnamespace and x.indisvalid and not i.relispartition),
       -- Partitions have their own.
       array(select c.relname::text from pg_class c
              where c.relnamespace = $1::text::regnamespace and c.relkind = 'r' and c.relreplident <> 'f'
                and not exists (select from pg_index x where x.indrelid = c.oid
                                   and case c.relreplident when 'd' then x.indisprimary when 'i' then x.indisreplident end)
              order by 1)
