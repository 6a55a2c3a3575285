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

-- Take messages.
--
-- Messages are taken by pgmq.read's own statement, but in the order in which they became visible, where pgmq.read has the oldest
-- id first, so that a message which failed would go before all that waited longer; with what is to be left alone left out; and
-- with the time since when it was visible, which pgmq.read does not tell. A queue may be read by PGMQ's own functions instead.
--
-- Of messages that became visible at the same moment the index gives first what was written first. Ordering those by their id, too,
-- would sort a whole bulk for each claim.
--
-- The queues take turns: `last_name` is the one that was served last. `hows` says for a queue, or for '' and so for all, by which
-- function it is read, and a condition on its messages. `finished` are batches of which all is settled.
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
  taken    bigint[];
  counts   integer[];
  since    timestamptz[];
  bad      bigint[];
  batch    bigint;
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
      got := 0;
      loop
        if how ->> 'by' is null or alone then
          execute format($f$
            select array_agg(msg_id) filter (where not poison), array_agg(read_ct + 1) filter (where not poison),
                   array_agg(vt) filter (where not poison), array_agg(msg_id) filter (where poison)
              from (select msg_id, read_ct, vt, read_ct > 0 and onward.is_poison(read_ct, headers, $5) as poison from pgmq.%1$I
                     where vt <= $2 %2$s %3$s and (read_ct = 0 or onward.is_free($4, msg_id, read_ct, headers))
                     order by vt limit $1 for update skip locked) picked $f$,
            'q_' || lower(name),
            case when alone then 'and msg_id = any ($3)' when cardinality(apart) > 0 then 'and not msg_id = any ($3)' end,
            case when how -> 'where' <> 'null' then 'and message @> $6' end)
            into taken, counts, since, bad
            using share - got, now_at, apart, name, max_reads, how -> 'where';
        else
          execute format($f$
            select array_agg(msg_id) filter (where not poison), array_agg(read_ct) filter (where not poison),
                   array_agg(enqueued_at) filter (where not poison), array_agg(msg_id) filter (where poison)
              from (select msg_id, read_ct, enqueued_at, onward.wasted(read_ct, headers) > $4 as poison
                      from pgmq.%1$I($1, $2, $3 %2$s)) picked $f$, how ->> 'by', case how ->> 'by' when 'read' then ', $5' end)
            into taken, counts, since, bad
            using name, ceil(extract(epoch from hold))::integer, share - got, max_reads,
                  coalesce(nullif(how -> 'where', 'null'), '{}');
        end if;
        if bad is not null then
          perform onward.bury(name, bad, columns, max_reads);
        end if;
        exit when taken is null and bad is null;
        if taken is not null then
          insert into onward.held (queue, worker_id, claimed_at, until, alone, msg_ids, read_cts)
          values (name, worker, now_at, now_at + hold, alone, taken, counts) returning id into batch;
          return next ('b', batch, alone::integer, null, name, jsonb_build_array(
            onward.micros(hold), lanes.attempts[lane], lanes.backoffs[lane])::text, null)::onward.answer;
          return query execute format($f$
            with took as (
              %2$s
            )
            select 'm'::"char", t.msg_id, t.read_ct, greatest(extract(epoch from $2 - p.since), 0)::double precision,
                   coalesce(t.message::text, 'null'), onward.note_of(t.headers)::text, %3$s
              from took t join unnest($1, $4) p (msg_id, since) on p.msg_id = t.msg_id
             order by p.since, p.msg_id $f$,
            'q_' || lower(name),
            format(case when how ->> 'by' is null or alone
                        then 'update pgmq.%I set read_ct = read_ct + 1, vt = $2 + $3 '
                             || case when columns like '%last_read_at%' then ', last_read_at = $2 ' else '' end
                             || 'where msg_id = any ($1) returning msg_id, read_ct, message, headers'
                        else 'select msg_id, read_ct, message, headers from pgmq.%I where msg_id = any ($1)' end,
                   'q_' || lower(name)),
            case when alone then '(select s.crashes from onward.suspect s where s.queue = $5 and s.msg_id = t.msg_id)'
                 else 'null::integer' end)
            using taken, now_at, hold, since, name;
          got := got + cardinality(taken);
        end if;
        exit when got >= share;
      end loop;
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
