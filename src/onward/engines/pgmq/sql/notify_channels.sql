-- The queues that PGMQ tells of new messages of, and the channel for each.
select 'pgmq.' || c.relname || '.INSERT', m.queue_name::text
  from pg_catalog.pg_trigger t
  join pg_catalog.pg_class c on c.oid = t.tgrelid and c.relnamespace = to_regnamespace('pgmq')
  join pgmq.meta m on 'q_' || lower(m.queue_name) = c.relname
 where t.tgname = 'trigger_notify_queue_insert_listeners'
