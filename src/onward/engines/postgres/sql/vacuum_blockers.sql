-- Who keeps vacuum from cleaning up here: the oldest session of this database, prepared transaction of it, standby that tells us
-- what its queries need, and replication slot; and how many sessions we may not look at.
-- A session holds back what was there when it wrote first (backend_xid), as well as what it may yet read (backend_xmin). One in
-- another database holds up vacuum there. A vacuum holds up no other.
-- $1 how old a transaction must be, in microseconds; $2 how old what has no time must be, in transactions
(select 'session', pid::text, coalesce(usename, '?'), coalesce(state, '?'),
        extract(epoch from clock_timestamp() - xact_start)::float8, left(query, 80)
   from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and num_nonnulls(backend_xid, backend_xmin) > 0
    and backend_type not in ('autovacuum worker', 'parallel worker')
    and pid not in (select pid from pg_stat_progress_vacuum)
    and xact_start < clock_timestamp() - onward.to_interval($1::bigint)
  -- What a session may yet read goes back to the oldest that was writing then: of two as old, the first is the cause.
  order by greatest(age(backend_xid), age(backend_xmin)) desc, xact_start limit 1)
union all
(select 'prepared', quote_literal(gid), owner, 'prepared', extract(epoch from clock_timestamp() - prepared)::float8, ''
   from pg_prepared_xacts where database = current_database() and prepared < clock_timestamp() - onward.to_interval($1::bigint)
  order by age(transaction) desc limit 1)
union all
(select 'standby', coalesce(nullif(application_name, ''), pid::text), coalesce(usename, '?'), coalesce(state, '?'), null, ''
   from pg_stat_replication where age(backend_xmin) > $2::bigint
  order by age(backend_xmin) desc limit 1)
union all
(select 'slot', quote_literal(slot_name), '', case when active then 'active' else 'inactive' end, null, ''
   from pg_replication_slots where age(xmin) > $2::bigint
  order by age(xmin) desc limit 1)
union all
-- A slot that decodes changes holds back the database's own tables only.
(select 'decoding slot', quote_literal(slot_name), '', case when active then 'active' else 'inactive' end, null, ''
   from pg_replication_slots where xmin is null and age(catalog_xmin) > $2::bigint
  order by age(catalog_xmin) desc limit 1)
union all
(select 'hidden', count(*)::text, quote_ident(current_user), '', null, ''
   from pg_stat_activity
  where datname = current_database() and not pg_has_role('pg_read_all_stats', 'usage') and not pg_has_role(usesysid, 'usage')
 having count(*) > 0)
