-- A line of the answer to a claim: `b` a batch that was taken from a queue, `m` each of its messages after it, and `e` the end,
-- whether suspects wait and which queue was served last.
create type onward.answer as (
  kind    "char",
  number  bigint,            -- the id of a message, or a batch
  read_ct integer,
  waited  double precision,
  payload text,              -- or the queue
  note    text,              -- or the batch's lease, attempts, backoff; or `true`
  crashes integer
);

-- Archive messages that are poison: read too often without an outcome. They are locked, and not read again.
create function onward.bury(queue text, ids bigint[], columns text, max_reads integer) returns void
  language plpgsql as $$
begin
  execute format($f$
    with gone as (delete from pgmq.%1$I where msg_id = any ($1) returning *)
    insert into pgmq.%2$I (%3$s, headers)
    select %3$s, onward.noted(headers, jsonb_build_object('state', 'failed', 'reads', read_ct, 'error', $3), '{lost}',
                              jsonb_build_object('kind', 'PoisonPill', 'message', $4, 'attempt',
                                                 onward.whole(onward.note_of(headers), 'attempts')), $2)
      from gone $f$,
    'q_' || lower(queue), 'a_' || lower(queue), columns)
    using ids, clock_timestamp(), format('PoisonPill: read %s times without an outcome', max_reads),
          format('read %s times without an outcome', max_reads);
  delete from onward.suspect s where s.queue = bury.queue and s.msg_id = any (ids);
end $$;

-- Whether the next read of a message would be one too many.
create function onward.is_poison(read_ct integer, headers jsonb, max_reads integer) returns boolean
  language plpgsql stable parallel safe as $$
begin
  return onward.wasted(read_ct, headers) >= max_reads;
end $$;

-- Whether a message that was read before may be read again: its last read has ended, or was not ours. What a worker of ours has
-- lost is given back by a leader, who writes the loss down first. Not to be inlined: planning it would cost more than it does.
create function onward.is_free(queue text, msg_id bigint, read_ct integer, headers jsonb) returns boolean
  language plpgsql stable as $$
begin
  return onward.reads_of(headers) = read_ct
         or not exists (select from onward.held h where h.queue = is_free.queue and is_free.msg_id = any (h.msg_ids));
end $$;

-- Take messages of a queue, and archive those that are poison.
--
-- They are taken by pgmq.read's own statement, but in the order in which they became visible, where pgmq.read has the oldest id
-- first, so that a message which failed would go before all that waited longer; with what is to be left alone left out, or `alone`
-- taken; and with the time since when it was visible, which pgmq.read does not tell.
--
-- Of messages that became visible at the same moment the index gives first what was written first. Ordering those by their id, too,
-- would sort a whole bulk for each claim.
create function onward.take(
    queue text, worker text, now_at timestamptz, hold interval, most integer, max_reads integer, condition jsonb, settings jsonb,
    apart bigint[], alone boolean, columns text)
  returns setof onward.answer
  language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
declare
  left_ integer := most;
  bad   bigint[];
  line  onward.answer;
  body  text := format($f$
    with picked as (
      select msg_id, vt, read_ct > 0 and onward.is_poison(read_ct, headers, $6::integer) as poison from pgmq.%%1$I
       where vt <= $3::timestamptz and (read_ct = 0 or onward.is_free($1, msg_id, read_ct, headers))
         and ($7::jsonb is null or message @> $7) and %1$s
       limit $5::integer for update skip locked
    ), took as (
      update pgmq.%%1$I m set read_ct = m.read_ct + 1, vt = $3 + $4::interval %2$s
        from picked p where m.msg_id = p.msg_id and not p.poison
      returning m.msg_id, m.read_ct, m.message, m.headers, p.vt as since
    ), batch as (
      insert into onward.held (queue, worker_id, claimed_at, until, alone, msg_ids, read_cts)
      select $1::text, $2::text, $3, $3 + $4, %3$L, array_agg(msg_id), array_agg(read_ct) from took having count(*) > 0
      returning id
    )
    select 'b'::"char", id, %3$L::boolean::integer, null::double precision, $1, $8::text, null::integer from batch
    union all
    (select 'm', msg_id, read_ct, extract(epoch from $3 - since)::double precision, coalesce(message::text, 'null'),
            onward.note_of(headers)::text, %4$s
       from took order by since, msg_id)
    union all
    select 'p', msg_id, null, null, null, null, null from picked where poison $f$,
    case when alone then 'msg_id = any ($9::bigint[])' else 'not msg_id = any ($9::bigint[]) order by vt' end,
    case when columns like '%last_read_at%' then ', last_read_at = $3' end,
    alone,
    case when alone then '(select s.crashes from onward.suspect s where s.queue = $1 and s.msg_id = took.msg_id)' else 'null' end);
begin
  loop
    bad := null;
    for line in execute format(
      'execute %I (%L, %L, %L, %L, %s, %s, %L, %L, %L)',
      onward.prepared(case when alone then 'take_alone' else 'take' end, queue, columns, body),
      queue, worker, now_at, hold, left_, max_reads, condition, settings, apart)
    loop
      if line.kind = 'p' then
        bad := bad || line.number;
      else
        left_ := left_ - (line.kind = 'm')::integer;
        return next line;
      end if;
    end loop;
    exit when bad is null;
    perform onward.bury(queue, bad, columns, max_reads);
    exit when left_ = 0;
  end loop;
end $$;

-- Do the same by one of PGMQ's own functions.
create function onward.take_by(
    function text, queue text, worker text, now_at timestamptz, hold interval, most integer, max_reads integer, condition jsonb,
    settings jsonb, columns text)
  returns setof onward.answer
  language plpgsql as $$
declare
  left_  integer := most;
  taken  bigint[];
  counts integer[];
  since  timestamptz[];
  bad    bigint[];
  batch  bigint;
begin
  loop
    execute format($f$
      select array_agg(msg_id) filter (where not poison), array_agg(read_ct) filter (where not poison),
             array_agg(enqueued_at) filter (where not poison), array_agg(msg_id) filter (where poison)
        from (select msg_id, read_ct, enqueued_at, onward.wasted(read_ct, headers) > $4 as poison
                from pgmq.%1$I($1, $2, $3 %2$s)) picked $f$, function, case function when 'read' then ', $5' end)
      into taken, counts, since, bad
      using queue, ceil(extract(epoch from hold))::integer, left_, max_reads, coalesce(condition, '{}');
    if taken is not null then
      insert into onward.held (queue, worker_id, claimed_at, until, alone, msg_ids, read_cts)
      values (queue, worker, now_at, now_at + hold, false, taken, counts) returning id into batch;
      return next ('b', batch, 0, null, queue, settings::text, null)::onward.answer;
      return query execute format($f$
        select 'm'::"char", t.msg_id, t.read_ct, greatest(extract(epoch from $2 - p.since), 0)::double precision,
               coalesce(t.message::text, 'null'), onward.note_of(t.headers)::text, null::integer
          from pgmq.%I t join unnest($1, $3) p (msg_id, since) on p.msg_id = t.msg_id
         where t.msg_id = any ($1)
         order by p.since, p.msg_id $f$, 'q_' || lower(queue))
        using taken, now_at, since;
      left_ := left_ - cardinality(taken);
    end if;
    exit when bad is null;
    perform onward.bury(queue, bad, columns, max_reads);
    exit when left_ = 0;
  end loop;
end $$;

-- Take messages of several queues, which take turns: `last_name` is the one that was served last. `hows` says for a queue, or for ''
-- and so for all, by which function it is read, and a condition on its messages. `finished` are batches of which all is settled.
create function onward.claim(
    columns text, worker text, everything boolean, names text[], prefixes text[], last_name text, slots integer, lease interval,
    alone boolean, max_reads integer, hows jsonb, finished bigint[])
  returns setof onward.answer
  language plpgsql as $$
declare
  now_at   timestamptz;
  lanes    record;
  todo     integer[];
  again    integer[];
  room     integer := case when alone then least(slots, 1) else slots end;
  share    integer;
  got      integer;
  lane     integer;
  name     text;
  hold     interval;
  how      jsonb;
  apart    bigint[];
  settings jsonb;
  waits    boolean := false;
begin
  if cardinality(finished) > 0 then
    delete from onward.held h where h.id = any (finished);
  end if;
  now_at := clock_timestamp();
  select array_agg(o.name) as names, array_agg(o.lease) as leases, array_agg(o.max_attempts) as attempts,
         array_agg(o.backoff) as backoffs into lanes
    from (select m.queue_name::text as name, q.lease, q.max_attempts, q.backoff
            from pgmq.meta m left join onward.queue q on q.name = m.queue_name
           where (everything or m.queue_name = any (names)
                  or exists (select from unnest(prefixes) p (prefix) where starts_with(m.queue_name, p.prefix)))
             and not coalesce(q.paused, false)
           order by m.queue_name collate "C" <= last_name collate "C", m.queue_name collate "C") o;
  todo := array(select generate_series(1, coalesce(array_length(lanes.names, 1), 0)));
  while room > 0 and cardinality(todo) > 0 loop
    again := '{}';
    for turn in 1 .. cardinality(todo) loop
      exit when room <= 0;
      lane := todo[turn];
      name := lanes.names[lane];
      hold := coalesce(lanes.leases[lane], lease);
      how := coalesce(hows -> name, hows -> '');
      apart := array(select s.msg_id from onward.suspect s where s.queue = name);
      if alone and cardinality(apart) = 0 then
        continue;
      end if;
      share := ceil(room::numeric / (cardinality(todo) - turn + 1));
      settings := jsonb_build_array(onward.micros(hold), lanes.attempts[lane], lanes.backoffs[lane]);
      if how ->> 'by' is null or alone then
        return query select * from onward.take(name, worker, now_at, hold, share, max_reads, nullif(how -> 'where', 'null'), settings,
                                               apart, alone, columns);
      else
        return query select * from onward.take_by(how ->> 'by', name, worker, now_at, hold, share, max_reads,
                                                  nullif(how -> 'where', 'null'), settings, columns);
      end if;
      get diagnostics got = row_count;
      got := greatest(got - 1, 0);  -- what says whose they are is not one of them
      room := room - got;
      if got > 0 then
        claim.last_name := name;
      end if;
      if got >= share then
        again := again || lane;
      end if;
    end loop;
    todo := again;
  end loop;
  for name, apart in
    select s.queue, array_agg(s.msg_id) from onward.suspect s where s.queue = any (lanes.names) group by s.queue
  loop
    execute format('select $1 or exists (select from pgmq.%I where msg_id = any ($2) and vt <= $3)', 'q_' || lower(name))
      into waits using waits, apart, now_at;
  end loop;
  return next ('e', null, waits::integer, null, claim.last_name, null, null)::onward.answer;
end $$;
