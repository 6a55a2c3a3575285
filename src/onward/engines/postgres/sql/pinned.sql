-- Who keeps the database from cleaning up: the oldest transaction, prepared transaction, replication slot and standby.
-- $1 how old a transaction must be, in microseconds; $2 how old what has no time must be, in transactions
(select 'session', pid::text, coalesce(usename, '?'), coalesce(state, '?'),
        extract(epoch from clock_timestamp() - xact_start)::float8, left(query, 80)
   from pg_stat_activity
  where backend_xmin is not null and pid <> pg_backend_pid() and backend_type = 'client backend'
    and xact_start < clock_timestamp() - onward.span($1::bigint)
  order by age(backend_xmin) desc limit 1)
union all
(select 'prepared', gid, owner, 'prepared', extract(epoch from clock_timestamp() - prepared)::float8, ''
   from pg_prepared_xacts where database = current_database() and prepared < clock_timestamp() - onward.span($1::bigint)
  order by prepared limit 1)
union all
(select 'slot', slot_name, '', case when active then 'active' else 'inactive' end, null, ''
   from pg_replication_slots where greatest(age(xmin), age(catalog_xmin)) > $2::bigint
  order by greatest(age(xmin), age(catalog_xmin)) desc limit 1)
