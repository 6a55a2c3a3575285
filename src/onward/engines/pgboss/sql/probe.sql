-- What pg-boss has made here: one row for each column, function and index that we might need.
-- $1 its schema
select 'column', c.relname || '.' || a.attname
  from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relnamespace = $1::text::regnamespace
   and c.relname in ('job', 'queue', 'schedule', 'version', 'job_dependency', 'archive')
union all
select 'function', p.proname || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')'
  from pg_catalog.pg_proc p where p.pronamespace = $1::text::regnamespace
union all
select 'index', substring(pg_catalog.pg_get_indexdef(i.indexrelid) from '\(.*')
  from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indrelid
 where c.relnamespace = $1::text::regnamespace and c.relname in ('job', 'job_common') and i.indisvalid
