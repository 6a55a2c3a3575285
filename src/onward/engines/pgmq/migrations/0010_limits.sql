-- Limits of queues, kept by Onward's workers; other consumers of PGMQ do not know of them.
-- include onward.pg.limits schema.sql
-- include onward.pg.limits queues.sql

-- How many messages of a queue Onward's workers hold.
create function onward.held_count(of_queue text) returns bigint
  language plpgsql as $$
declare
  held bigint;
begin
  if not exists (select from onward.queue_limit l where l.queue = of_queue and l.concurrency is not null) then
    return 0;
  end if;
  execute format(
    'select count(*) from pgmq.%I m where m.msg_id = any ($1) and '
    'onward.status_of($2, m.msg_id, m.read_ct, m.vt, m.headers, m.enqueued_at) = $3', 'q_' || lower(of_queue))
    into held
    using array(select distinct unnest(h.msg_ids) from onward.lease_batch h where h.queue = of_queue), of_queue, 'running';
  return held;
end $$;
