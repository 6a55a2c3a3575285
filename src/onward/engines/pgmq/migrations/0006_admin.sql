-- Where a message stands that is in a queue's table.
create function onward.status_of(
    queue text, msg_id bigint, read_ct integer, vt timestamptz, headers jsonb, enqueued_at timestamptz)
  returns text
  language sql stable
  return case
    when vt = 'infinity' then 'blocked'
    when read_ct > onward.settled_reads(headers, msg_id, enqueued_at) then
      case when vt > clock_timestamp() or exists (
             select from onward.lease_batch h
              where h.queue = status_of.queue and status_of.msg_id = any (h.msg_ids)
                and h.read_cts[array_position(h.msg_ids, status_of.msg_id)] = status_of.read_ct)
           then 'running' else 'pending' end
    when vt > clock_timestamp() or exists (
      select from onward.due d where d.queue = status_of.queue and d.msg_id = status_of.msg_id and d.read_ct = status_of.read_ct)
      then 'scheduled'
    else 'pending' end;

-- How an archived message ended. What others have archived they were done with.
create function onward.final_status(headers jsonb, msg_id bigint, enqueued_at timestamptz) returns text
  language sql immutable parallel safe
  return case when onward.job_header(headers, msg_id, enqueued_at) ->> 'status' in ('failed', 'dead_letter', 'cancelled')
              then onward.job_header(headers, msg_id, enqueued_at) ->> 'status' else 'completed' end;

-- Take messages back: they are archived, whoever holds them.
create function onward.cancel(queues text[], ids bigint[], reason text, columns text)
  returns table (queue text, msg_id bigint, before text)
  language plpgsql as $$
declare
  part record;
begin
  for part in
    select g.queue, array_agg(g.id order by g.id) as ids from unnest(queues, ids) g (queue, id) group by g.queue order by g.queue
  loop
    return query execute format($f$
      with gone as (
        delete from pgmq.%1$I q where msg_id = any ($1)
        returning *, onward.status_of($2, q.msg_id, q.read_ct, q.vt, q.headers, q.enqueued_at) as g_before
      ), kept as (
        insert into pgmq.%2$I (%3$s, headers)
        select %3$s, onward.patch_job_header(headers, msg_id, enqueued_at, jsonb_build_object(
                 'status', 'cancelled', 'error', $3,
                 'attempts', onward.header_integer(onward.job_header(headers, msg_id, enqueued_at), 'attempts') + (g_before = 'running')::integer,
                 'reads', read_ct), '{lost}', null, $4)
          from gone
      )
      select $2, msg_id, g_before from gone $f$,
      'q_' || lower(part.queue), 'a_' || lower(part.queue), columns)
      using part.ids, part.queue, reason, clock_timestamp();
    delete from onward.suspect s where s.queue = part.queue and s.msg_id = any (part.ids);
    delete from onward.due d where d.queue = part.queue and d.msg_id = any (part.ids);
  end loop;
  perform pg_notify('onward_pgmq', '!');
end $$;

-- Give ended messages a new life: back from the archive with the same id and the same read count, so that no claim of the
-- former life fits. PGMQ has no function for it.
create function onward.replay(queues text[], ids bigint[], columns text)
  returns table (queue text, msg_id bigint, before text)
  language plpgsql as $$
declare
  part record;
begin
  for part in
    select g.queue, array_agg(g.id order by g.id) as ids from unnest(queues, ids) g (queue, id) group by g.queue order by g.queue
  loop
    return query execute format($f$
      with back as (
        delete from pgmq.%2$I a where msg_id = any ($1) and onward.final_status(headers, msg_id, enqueued_at) <> 'completed'
        returning *, onward.final_status(a.headers, a.msg_id, a.enqueued_at) as g_before
      ), put as (
        insert into pgmq.%1$I (%3$s, headers) overriding system value
        select %4$s, onward.patch_job_header(headers, msg_id, enqueued_at, jsonb_build_object('status', 'replayed', 'attempts', 0, 'reads', read_ct),
                                  '{lost,put_backs,error,crashes,progress,progress_message}', null, $3)
          from back
      )
      select $2, msg_id, g_before from back $f$,
      'q_' || lower(part.queue), 'a_' || lower(part.queue), columns, regexp_replace(columns, '\mvt\M', '$3'))
      using part.ids, part.queue, clock_timestamp();
    perform pg_notify('onward_pgmq', part.queue);
  end loop;
end $$;

-- Remove messages that nobody holds, from the queue or from the archive.
create function onward.delete(queues text[], ids bigint[])
  returns table (queue text, msg_id bigint, before text)
  language plpgsql as $$
declare
  part record;
begin
  for part in
    select g.queue, array_agg(g.id order by g.id) as ids from unnest(queues, ids) g (queue, id) group by g.queue order by g.queue
  loop
    return query execute format($f$
      with live as (
        delete from pgmq.%1$I q
         where msg_id = any ($1) and onward.status_of($2, q.msg_id, q.read_ct, q.vt, q.headers, q.enqueued_at) <> 'running'
        returning q.msg_id, onward.status_of($2, q.msg_id, q.read_ct, q.vt, q.headers, q.enqueued_at) as before
      ), ended as (
        delete from pgmq.%2$I a where msg_id = any ($1) returning a.msg_id, onward.final_status(a.headers, a.msg_id, a.enqueued_at) as before
      )
      select $2, msg_id, before from live union all select $2, msg_id, before from ended $f$,
      'q_' || lower(part.queue), 'a_' || lower(part.queue))
      using part.ids, part.queue;
    delete from onward.suspect s where s.queue = part.queue and s.msg_id = any (part.ids);
    delete from onward.due d where d.queue = part.queue and d.msg_id = any (part.ids);
  end loop;
end $$;

-- Change a message that waits.
create function onward.edit(queue text, id bigint, payload text, run_at bigint, patch jsonb) returns boolean
  language plpgsql as $$
declare
  changed integer;
begin
  execute format($f$
    update pgmq.%I q
       set message = case when $3 is null then q.message else $3::jsonb end,
           vt = coalesce(onward.to_timestamp($4), q.vt),
           headers = onward.patch_job_header(q.headers, q.msg_id, q.enqueued_at, $5, '{}', null, null)
     where msg_id = $2 and onward.status_of($1, q.msg_id, q.read_ct, q.vt, q.headers, q.enqueued_at) <> 'running' $f$,
    'q_' || lower(queue)) using queue, id, payload, run_at, patch;
  get diagnostics changed = row_count;
  if changed > 0 and run_at is not null then
    update onward.due d set due_at = onward.to_timestamp(edit.run_at) where d.queue = edit.queue and d.msg_id = edit.id;
  end if;
  return changed > 0;
end $$;

-- Change what a queue is told to do, and make it by PGMQ's own function if there is none. Refuses, by answering its name, one
-- that differs in case only: they would share their tables.
create function onward.configure(queue text, changes jsonb) returns text
  language plpgsql as $$
declare
  clash text;
begin
  lock table onward.queue in share row exclusive mode;  -- one at a time; to take it needs a privilege here
  if not exists (select from pgmq.meta m where m.queue_name = queue) then
    select m.queue_name into clash from pgmq.meta m where lower(m.queue_name) = lower(queue);
    if found then
      return clash;
    end if;
    perform pgmq.create(queue);
  end if;
  insert into onward.queue (name) values (queue) on conflict (name) do nothing;
  if changes <> '{}' then
    update onward.queue q set (paused, pause_reason, paused_by, paused_at, lease, max_attempts, backoff, keep_completed, keep_completed_count, keep_failed,
                               keep_failed_count, keep_cancelled)
      = (select r.paused, case when r.paused then r.pause_reason end, case when r.paused then r.paused_by end,
                case when r.paused then coalesce(q.paused_at, clock_timestamp()) end, r.lease, r.max_attempts, r.backoff, r.keep_completed, r.keep_completed_count, r.keep_failed,
                r.keep_failed_count, r.keep_cancelled
           from jsonb_populate_record(q, changes) r)
     where q.name = queue;
    perform pg_notify('onward_pgmq', queue);
  end if;
  return null;
end $$;
