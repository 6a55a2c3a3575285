-- Whether a term is the present one. Locks it: nobody can follow while its work is done.
create function onward.is_leader(number bigint, leader text) returns boolean
  language plpgsql as $$
begin
  perform from onward.leader l where l.number = is_leader.number and l.leader_id = leader and l.until > clock_timestamp() for share;
  return found;
end $$;

-- Tell of messages whose time has come. PGMQ has made them visible by itself; a worker that is idle has to be woken.
create function onward.promote(number bigint, leader text, max_rows integer, out promoted integer, out queues text[],
                               out examined integer, out next_in double precision)
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  part   record;
  ready  integer;
begin
  promoted := 0;
  queues := '{}';
  examined := 0;
  if not onward.is_leader(number, leader) then
    return;
  end if;
  for part in
    with gone as (
      delete from onward.due d
       where (d.queue, d.msg_id) in (
         select e.queue, e.msg_id from onward.due e where e.due_at <= now_at order by e.due_at limit max_rows for update skip locked)
      returning d.*
    )
    select g.queue, array_agg(g.msg_id) as ids, array_agg(g.read_ct) as reads from gone g group by g.queue order by g.queue
  loop
    examined := examined + cardinality(part.ids);
    continue when to_regclass(format('pgmq.%I', 'q_' || lower(part.queue))) is null;
    execute format($f$
      with g as (select * from unnest($1, $2) g (id, reads)), live as (
        select q.msg_id, q.read_ct, q.vt from pgmq.%I q join g on q.msg_id = g.id and q.read_ct = g.reads
         where q.msg_id = any ($1)
      ), later as (
        insert into onward.due (queue, msg_id, read_ct, due_at)
        select $4, l.msg_id, l.read_ct, l.vt from live l where l.vt > $3 and l.vt < 'infinity'
        on conflict on constraint due_pkey do nothing
      )
      select count(*) from live where vt <= $3 $f$, 'q_' || lower(part.queue))
      into ready using part.ids, part.reads, now_at, part.queue;
    if ready > 0 then
      promoted := promoted + ready;
      queues := queues || part.queue;
      perform pg_notify('onward_pgmq', part.queue);
    end if;
  end loop;
  next_in := (select extract(epoch from min(d.due_at) - now_at) from onward.due d);
end $$;

-- Give back messages whose worker has died: batches whose time is over, and of each what is still held and visible again. A loss
-- is written into the message, so that the claim is void though nobody has read it since; the attempt was not counted yet.
create function onward.rescue(number bigint, leader text, lease interval, max_rows integer, out rescued integer, out queues text[])
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  batch  record;
  lost   bigint[];
  later  timestamptz;        -- when the last of a batch that is still held may be lost
begin
  rescued := 0;
  queues := '{}';
  if not onward.is_leader(number, leader) then
    return;
  end if;
  delete from onward.worker w where w.last_heartbeat < now_at - lease;
  for batch in
    select h.* from onward.lease_batch h
     where h.lease_until <= now_at order by h.lease_until, h.id limit max_rows for update skip locked
  loop
    exit when rescued >= max_rows;
    if to_regclass(format('pgmq.%I', 'q_' || lower(batch.queue))) is null then
      delete from onward.lease_batch h where h.id = batch.id;
      continue;
    end if;
    execute format($f$
      select array_agg(q.msg_id) filter (where q.vt <= $3), max(q.vt) filter (where q.vt > $3)
        from (select q.msg_id, q.enqueued_at, q.vt, q.read_ct, q.headers from pgmq.%I q where q.msg_id = any ($1) for update) q
        join unnest($1, $2) g (id, reads) on g.id = q.msg_id and g.reads = q.read_ct
       where onward.settled_reads(q.headers, q.msg_id, q.enqueued_at) < q.read_ct $f$, 'q_' || lower(batch.queue))
      into lost, later using batch.msg_ids, batch.read_cts, now_at;
    if lost is not null then
      lost := lost[1 : max_rows - rescued];
      -- The first time it runs again like any other message; if that run is lost, too, it is a suspect.
      insert into onward.suspect as s (queue, msg_id) select batch.queue, l.id from unnest(lost) l (id)
      on conflict on constraint suspect_pkey do update set losses = s.losses + 1;
      execute format($f$
        update pgmq.%I q
           set headers = onward.patch_job_header(q.headers, q.msg_id, q.enqueued_at, jsonb_build_object(
                           'status', 'lost', 'reads', q.read_ct,
                           'lost', onward.header_integer(onward.job_header(q.headers, q.msg_id, q.enqueued_at), 'lost') + 1),
                         '{}', null, null)
         where q.msg_id = any ($1) $f$, 'q_' || lower(batch.queue)) using lost;
      rescued := rescued + cardinality(lost);
      queues := queues || batch.queue;
      perform pg_notify('onward_pgmq', batch.queue);
    end if;
    if rescued >= max_rows then
      exit;  -- there may be more of this batch: it stays
    end if;
    if later is null then
      delete from onward.lease_batch h where h.id = batch.id;
    else
      update onward.lease_batch h set lease_until = later where h.id = batch.id;
    end if;
  end loop;
end $$;

-- Remove archived messages that their queue's retention no longer keeps: only those whose end Onward has written down.
create function onward.prune(number bigint, leader text, max_rows integer) returns integer
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  part   record;
  done   integer;
  total  integer := 0;
begin
  if not onward.is_leader(number, leader) then
    return 0;
  end if;
  for part in
    select m.queue_name::text as queue, k.kind, k.statuses, k.keep, k.kept, p.pruned_until
      from pgmq.meta m
      left join onward.queue q on q.name = m.queue_name
      cross join lateral (values
        ('completed', array['completed'], case when q.name is null then interval '168 hours' else q.keep_completed end,
         q.keep_completed_count),
        ('failed', array['failed', 'dead_letter'], q.keep_failed, q.keep_failed_count),
        ('cancelled', array['cancelled'], case when q.name is null then interval '168 hours' else q.keep_cancelled end,
         null::bigint)) k (kind, statuses, keep, kept)
      left join onward.prune_watermark p on p.queue = m.queue_name and p.kind = k.kind
     where k.keep is not null or k.kept is not null
     order by 1, 2
  loop
    exit when total >= max_rows;
    if part.keep is not null then
      execute format($f$
        with old as (
          select a.msg_id from pgmq.%1$I a
           where a.archived_at <= $1 and a.archived_at >= coalesce($2, '-infinity')
             and onward.job_header(a.headers, a.msg_id, a.enqueued_at) ->> 'status' = any ($3)
           order by a.archived_at limit $4 for update skip locked
        )
        delete from pgmq.%1$I a where a.msg_id = any (array(select msg_id from old)) $f$, 'a_' || lower(part.queue))
        using now_at - part.keep, part.pruned_until, part.statuses, max_rows - total;
      get diagnostics done = row_count;
      total := total + done;
      -- An hour behind: a transaction that began before has archived with a time that has passed.
      if total < max_rows and now_at - part.keep - interval '1 hour' > coalesce(part.pruned_until, '-infinity') then
        insert into onward.prune_watermark (queue, kind, pruned_until)
        values (part.queue, part.kind, now_at - part.keep - interval '1 hour')
        on conflict (queue, kind) do update set pruned_until = excluded.pruned_until;
      end if;
    end if;
    if part.kept is not null and total < max_rows then
      execute format($f$
        with old as (
          select a.msg_id from pgmq.%1$I a where onward.job_header(a.headers, a.msg_id, a.enqueued_at) ->> 'status' = any ($1)
           order by a.archived_at desc, a.msg_id desc offset $2 limit $3
        )
        delete from pgmq.%1$I a where a.msg_id = any (array(select msg_id from old)) $f$, 'a_' || lower(part.queue))
        using part.statuses, part.kept, max_rows - total;
      get diagnostics done = row_count;
      total := total + done;
    end if;
  end loop;
  return total;
end $$;
