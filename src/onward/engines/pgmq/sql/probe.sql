-- What this PGMQ has: its functions, its version if it is an extension, the columns of a message.
select array(select distinct proname::text from pg_catalog.pg_proc where pronamespace = to_regnamespace($$pgmq$$)),
       (select extversion from pg_catalog.pg_extension where extname = $$pgmq$$),
       array(select a.attname::text from pg_catalog.pg_attribute a
              where a.attrelid = to_regclass($$pgmq.message_record$$) and a.attnum > 0 and not a.attisdropped
              order by a.attnum)
