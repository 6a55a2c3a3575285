-- A line of the answer to a claim or an exchange. With a batch: a message that was taken. Without: a claim that was lost. Without
-- a queue: the last line, whether suspects wait, and where the next round begins.
create type onward.answer as (
  queue        text,
  msg_id       bigint,
  read_ct      integer,
  batch        bigint,
  waited       double precision,
  payload      text,
  note         text,
  lease        bigint,
  max_attempts bigint,
  backoff      text,
  is_suspect   boolean,
  crashes      integer,
  last_name    text
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

-- Take messages: pgmq.read's own statement but in the order in which they became visible, where pgmq.read has the oldest id
-- first, so that a message which failed would go before all that waited longer; with what is to be left alone left out; and
-- with the time since when it was visible, which pgmq.read does not tell. A queue may be read by PGMQ's own functions instead.
--
-- The queues take turns: `last_name` is the one that was served last. `hows` says for a queue, or for '' and so for all, by which
-- function it is read, and a condition on its messages. `finished` are batches of which all is settled.
create function onward.claim(
    worker text, everything boolean, names text[], prefixes text[], last_name text, slots integer, lease interval,
    alone boolean, max_reads integer, hows jsonb, columns text, finished bigint[])
  returns setof onward.answer
  language plpgsql as $$
declare
  now_at   timestamptz := clock_timestamp();
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
  fragment text := case when columns like '%last_read_at%' then ', last_read_at = $2' else '' end;
  apart    bigint[];
  ids      bigint[];
  reads    integer[];
  since    timestamptz[];
  bad      bigint[];
  batch    bigint;
  waits    boolean := false;
begin
  if cardinality(finished) > 0 then
    delete from onward.held h where h.id = any (finished);
  end if;
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
              from (select msg_id, read_ct, vt, onward.wasted(read_ct, headers) >= $6 as poison from pgmq.%I m
                     where vt <= $2 and (msg_id = any ($3)) = $7 and ($5 is null or message @> $5)
                       and (read_ct = 0 or onward.reads_of(headers) = read_ct
                            or not exists (select from onward.held h where h.queue = $4 and m.msg_id = any (h.msg_ids)))
                     order by vt, msg_id limit $1 for update skip locked) picked $f$, 'q_' || lower(name))
            into ids, reads, since, bad
            using share - got, now_at, apart, name, nullif(how -> 'where', 'null'), max_reads, alone;
          if ids is not null then
            execute format($f$
              update pgmq.%I set read_ct = read_ct + 1, vt = $2 + $3 %s where msg_id = any ($1) $f$,
              'q_' || lower(name), fragment) using ids, now_at, hold;
          end if;
        else
          execute format($f$
            select array_agg(msg_id) filter (where not poison), array_agg(read_ct) filter (where not poison),
                   array_agg(enqueued_at) filter (where not poison), array_agg(msg_id) filter (where poison)
              from (select msg_id, read_ct, enqueued_at, onward.wasted(read_ct, headers) > $4 as poison
                      from pgmq.%I($1, $2, $3 %s)) picked $f$, how ->> 'by', case how ->> 'by' when 'read' then ', $5' end)
            into ids, reads, since, bad
            using name, ceil(extract(epoch from hold))::integer, share - got, max_reads, coalesce(nullif(how -> 'where', 'null'), '{}');
        end if;
        if bad is not null then
          perform onward.bury(name, bad, columns, max_reads);
        end if;
        exit when ids is null and bad is null;
        if ids is not null then
          insert into onward.held (queue, worker_id, claimed_at, until, alone, msg_ids, read_cts)
          values (name, worker, now_at, now_at + hold, alone, ids, reads) returning id into batch;
          return query execute format($f$
            select $1, m.msg_id, m.read_ct, $2, greatest(extract(epoch from $3 - p.since), 0)::double precision,
                   coalesce(m.message::text, 'null'), onward.note_of(m.headers)::text, onward.micros($4), $5, $6, $7,
                   case when $7 then (select s.crashes from onward.suspect s where s.queue = $1 and s.msg_id = m.msg_id)
                   else 0 end, null::text
              from unnest($8, $9) p (msg_id, since) join pgmq.%I m on m.msg_id = p.msg_id
             where m.msg_id = any ($8)
             order by p.since, p.msg_id $f$, 'q_' || lower(name))
            using name, batch, now_at, hold, lanes.attempts[lane], lanes.backoffs[lane], alone, ids, since;
          got := got + array_length(ids, 1);
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
  return next (null, null, null, null, null, null, null, null, null, null, waits, null, claim.last_name)::onward.answer;
end $$;

-- Settle, then claim: one round trip, one commit.
create function onward.exchange(
    queues text[], ids bigint[], reads integer[], ends text[], delays bigint[], notes text[], failures text[], columns text,
    worker text, everything boolean, names text[], prefixes text[], last_name text, slots integer, lease interval,
    alone boolean, max_reads integer, hows jsonb, finished bigint[])
  returns setof onward.answer
  language plpgsql as $$
begin
  return query
    select g.queue, g.id, g.reads, null::bigint, null::double precision, null::text, null::text, null::bigint, null::bigint,
           null::text, null::boolean, null::integer, null::text
      from (select * from unnest(queues, ids, reads)
            except select * from onward.settle(queues, ids, reads, ends, delays, notes, failures, columns)) g (queue, id, reads);
  if worker is not null then
    return query select * from onward.claim(
      worker, everything, names, prefixes, last_name, slots, lease, alone, max_reads, hows, columns, finished);
  end if;
end $$;
