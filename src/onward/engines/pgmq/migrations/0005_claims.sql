-- A line of the answer to a claim: `b` a batch that was taken from a queue, `m` each of its messages after it, and `e` the end,
-- whether suspects wait and which queue was served last. Of one queue, `f` says that more waits than fits into the answer.
create type onward.claim_row as (
  kind    "char",
  number  bigint,            -- the id of a message, or a batch; or 1: more waits than fits into the answer
  read_ct integer,
  wait_seconds  double precision,
  payload text,              -- or the queue
  header  text,              -- or the batch's lease, attempts, backoff; or `true`
  crashes integer,
  stamp   bigint
);

-- Archive messages that are poison: read too often without an outcome. They are locked, and not read again.
create function onward.archive_poison(queue text, ids bigint[], columns text, max_reads integer) returns void
  language plpgsql as $$
begin
  execute format($f$
    with gone as (delete from pgmq.%1$I where msg_id = any ($1) returning *)
    insert into pgmq.%2$I (%3$s, headers)
    select %3$s, onward.patch_job_header(headers, msg_id, enqueued_at, jsonb_build_object('status', 'failed', 'reads', read_ct, 'error', $3), '{lost}',
                              jsonb_build_object('error_type', 'PoisonPill', 'message', $4, 'attempt',
                                                 onward.header_integer(onward.job_header(headers, msg_id, enqueued_at), 'attempts')), $2)
      from gone $f$,
    'q_' || lower(queue), 'a_' || lower(queue), columns)
    using ids, clock_timestamp(), format('PoisonPill: read %s times without an outcome', max_reads),
          format('read %s times without an outcome', max_reads);
  delete from onward.suspect s where s.queue = archive_poison.queue and s.msg_id = any (ids);
end $$;

-- Whether the next read of a message would be one too many.
create function onward.is_poison(msg_id bigint, enqueued_at timestamptz, read_ct integer, headers jsonb, max_reads integer) returns boolean
  language plpgsql stable parallel safe as $$
begin
  return onward.unsettled_reads(read_ct, headers, msg_id, enqueued_at) >= max_reads;
end $$;

-- Whether a message that was read before may be read again: its last read has ended, or was not ours. What a worker of ours has
-- lost is given back by a leader, who writes the loss down first. Not to be inlined: planning it would cost more than it does.
create function onward.is_claimable(queue text, msg_id bigint, enqueued_at timestamptz, read_ct integer, headers jsonb) returns boolean
  language plpgsql stable as $$
begin
  return onward.settled_reads(headers, msg_id, enqueued_at) = read_ct
         or not exists (select from onward.lease_batch h
                         where h.queue = is_claimable.queue and is_claimable.msg_id = any (h.msg_ids));
end $$;

create function onward.size_column() returns text
  language sql immutable parallel safe
  return 'coalesce(pg_column_size(message), 0) * case when pg_column_compression(message) is null then 1 else 8 end::bigint as size';

-- Take messages of a queue, and archive those that are poison.
--
-- No more are taken than `max_bytes` in all, or one. What is compressed is counted eightfold: to know its size it would have to be
-- read. The rest is unlocked when the transaction ends.
--
-- They are taken by pgmq.read's own statement, but in the order in which they became visible, where pgmq.read has the oldest id
-- first, so that a message which failed would go before all that wait_seconds longer; with what is to be left alone left out, or `isolated`
-- taken; and with the time since when it was visible, which pgmq.read does not tell.
--
-- Of messages that became visible at the same moment the index gives first what was written first. Ordering those by their id, too,
-- would sort a whole bulk for each claim.
create function onward.claim_queue(
    queue text, worker text, now_at timestamptz, lease interval, max_count integer, max_reads integer, condition jsonb,
    settings jsonb, suspects bigint[], isolated boolean, columns text, max_bytes bigint)
  returns setof onward.claim_row
  language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
declare
  remaining  integer := max_count;
  poison_ids bigint[];
  line       onward.claim_row;
  body       text := format($f$
    with picked as (
      select msg_id, vt, %5$s, read_ct > 0 and onward.is_poison(msg_id, enqueued_at, read_ct, headers, $6::integer) as poison from pgmq.%%1$I
       where vt <= $3::timestamptz and (read_ct = 0 or onward.is_claimable($1, msg_id, enqueued_at, read_ct, headers))
         and ($7::jsonb is null or message @> $7) and %1$s
       limit $5::integer for update skip locked
    ), fitting as (
      select p.* from picked p
       where (select coalesce(sum(size), 0) from picked) <= $10::bigint
          or p.msg_id = any (array(select c.msg_id
                                     from (select msg_id, size, sum(size) over (rows unbounded preceding) as upto from picked where not poison) c
                                    where c.upto <= $10 or c.upto = c.size))
    ), took as (
      update pgmq.%%1$I m set read_ct = m.read_ct + 1, vt = $3 + $4::interval %2$s
        from fitting p where m.msg_id = p.msg_id and not p.poison
      returning m.msg_id, m.enqueued_at, m.read_ct, m.message, m.headers, p.vt as since, onward.to_micros(m.%%4$I) as stamp
    ), batch as (
      insert into onward.lease_batch (queue, worker_id, claimed_at, lease_until, msg_ids, read_cts)
      select $1::text, $2::text, $3, $3 + $4, array_agg(msg_id), array_agg(read_ct) from took having count(*) > 0
      returning id
    )
    select 'b'::"char", id, %3$L::boolean::integer, null::double precision, $1, $8::text, null::integer, null::bigint from batch
    union all
    (select 'm', msg_id, read_ct, extract(epoch from $3 - since)::double precision, coalesce(message::text, 'null'),
            onward.job_header(headers, msg_id, enqueued_at)::text, %4$s, stamp
       from took order by since, msg_id)
    union all
    select 'p', msg_id, null, null, null, null, null, null from picked where poison
    union all
    select 'f', null, null, null, null, null, null, null
     where (select count(*) from picked where not poison) > (select count(*) from fitting where not poison) $f$,
    case when isolated then 'msg_id = any ($9::bigint[])' else 'not msg_id = any ($9::bigint[]) order by vt' end,
    case when columns like '%last_read_at%' then ', last_read_at = $3' end,
    isolated,
    case when isolated then '(select s.crashes from onward.suspect s where s.queue = $1 and s.msg_id = took.msg_id)'
         else 'null' end,
    onward.size_column());
begin
  loop
    poison_ids := null;
    for line in execute format(
      'execute %I (%L, %L, %L, %L, %s, %s, %L, %L, %L, %s)',
      onward.prepared_statement(case when isolated then 'claim_isolated' else 'claim' end, queue, columns, body),
      queue, worker, now_at, lease, remaining, max_reads, condition, settings, suspects, max_bytes)
    loop
      if line.kind = 'p' then
        poison_ids := poison_ids || line.number;
      elsif line.kind = 'f' then
        remaining := 0;
        return next line;
      else
        remaining := remaining - (line.kind = 'm')::integer;
        return next line;
      end if;
    end loop;
    exit when poison_ids is null;
    perform onward.archive_poison(queue, poison_ids, columns, max_reads);
    exit when remaining = 0;
  end loop;
end $$;

-- Read the first message of each group, if it can be seen: what pgmq.read_grouped_head of PGMQ 1.11 does. read_grouped and
-- read_grouped_rr hand out several messages of a group at once, for a reader that works them off in order. Our slots run them beside
-- each other, and one that fails comes after those behind it. A group whose first message is held, or waits to be retried, gives
-- nothing: whoever reads at the same time finds that row locked, or not visible once it has the lock. Nor does one of which a later
-- message is held: the first was sent by a transaction that took its id earlier, and committed when the later one was already read.
create function onward.read_group_heads(queue text, visibility_timeout interval, max_count integer, columns text, max_bytes bigint)
  returns table (msg_id bigint, read_ct integer, enqueued_at timestamptz, headers jsonb, is_full boolean)
  language plpgsql as $$
begin
  return query execute format($f$
    with heads as (
      select min(m.msg_id) as msg_id from pgmq.%1$I m
       group by coalesce(m.headers ->> 'x-pgmq-group', '_default_fifo_group')
      having not bool_or(m.read_ct > 0 and m.vt > clock_timestamp())
    ), picked as (
      select m.msg_id, %3$s from heads h join pgmq.%1$I m on m.msg_id = h.msg_id
       where m.vt <= clock_timestamp()
       order by m.msg_id limit $1 for update of m skip locked
    ), fitting as (
      select c.msg_id from (select p.msg_id, size, sum(size) over (rows unbounded preceding) as upto from picked p) c
       where c.upto <= $3 or c.upto = c.size
    )
    update pgmq.%1$I m set vt = clock_timestamp() + $2, read_ct = m.read_ct + 1 %2$s
      from fitting p where m.msg_id = p.msg_id
    returning m.msg_id, m.read_ct, m.enqueued_at, m.headers, (select count(*) from picked) > (select count(*) from fitting) $f$,
    'q_' || lower(queue), case when columns like '%last_read_at%' then ', last_read_at = clock_timestamp()' end, onward.size_column())
    using max_count, visibility_timeout, max_bytes;
end $$;

-- Do the same by one of PGMQ's own functions, or by read_group_heads. PGMQ's own is asked for as many messages as fit.
create function onward.claim_with_function(
    function text, queue text, worker text, now_at timestamptz, lease interval, max_count integer, max_reads integer, condition jsonb,
    settings jsonb, columns text, max_bytes bigint)
  returns setof onward.claim_row
  language plpgsql as $$
declare
  remaining  integer := max_count;
  is_full    boolean := false;
  taken      bigint[];
  counts     integer[];
  since      timestamptz[];
  poison_ids bigint[];
  batch      bigint;
begin
  if function = 'read' then
    execute format($f$
      select count(*) filter (where c.upto <= $3 or c.upto = c.size), count(*) filter (where c.upto > $3 and c.upto > c.size) > 0
        from (select m.size, sum(m.size) over (order by m.msg_id) as upto
                from (select msg_id, %2$s from pgmq.%1$I where vt <= clock_timestamp() and ($1 = '{}' or message @> $1)
                       order by msg_id limit $2) m) c $f$,
      'q_' || lower(queue), onward.size_column())
      into remaining, is_full using coalesce(condition, '{}'), max_count, max_bytes;
    if remaining = 0 then return; end if;
  end if;
  loop
    execute format($f$
      select array_agg(msg_id) filter (where not poison), array_agg(read_ct) filter (where not poison),
             array_agg(enqueued_at) filter (where not poison), array_agg(msg_id) filter (where poison), coalesce(bool_or(is_full), false)
        from (select msg_id, read_ct, enqueued_at, onward.unsettled_reads(read_ct, headers, msg_id, enqueued_at) > $4 as poison, is_full
                from %1$s) picked $f$,
      case function when 'read' then '(select *, $8 as is_full from pgmq.read($1, ceil(extract(epoch from $2))::integer, $3, $5)) r'
                    else 'onward.read_group_heads($1, $2, $3, $6, $7)' end)
      into taken, counts, since, poison_ids, is_full
      using queue, lease, remaining, max_reads, coalesce(condition, '{}'), columns, max_bytes, is_full;
    if taken is not null then
      insert into onward.lease_batch (queue, worker_id, claimed_at, lease_until, msg_ids, read_cts)
      values (queue, worker, now_at, now_at + lease, taken, counts) returning id into batch;
      return next ('b', batch, 0, null, queue, settings::text, null, null)::onward.claim_row;
      return query execute format($f$
        select 'm'::"char", t.msg_id, t.read_ct, greatest(extract(epoch from $2 - p.since), 0)::double precision,
               coalesce(t.message::text, 'null'), onward.job_header(t.headers, t.msg_id, t.enqueued_at)::text, null::integer,
               onward.to_micros(t.%2$I)
          from pgmq.%1$I t join unnest($1, $3) p (msg_id, since) on p.msg_id = t.msg_id
         where t.msg_id = any ($1)
         order by p.since, p.msg_id $f$, 'q_' || lower(queue), onward.stamp_column(columns))
        using taken, now_at, since;
      remaining := remaining - cardinality(taken);
    end if;
    if is_full then
      return next ('f', null, null, null, null, null, null, null)::onward.claim_row;
      remaining := 0;
    end if;
    exit when poison_ids is null;
    perform onward.archive_poison(queue, poison_ids, columns, max_reads);
    exit when remaining = 0;
  end loop;
end $$;

-- Take messages of several queues, which take turns: `last_name` is the one that was served last. `read_modes` says for a queue,
-- or for '' and so for all, by which function it is read, and a condition on its messages. `finished` are batches of which all is settled.
-- `max_bytes` is the most that the messages may have together, but for the last; what does not fit is left.
-- Of a queue with limits no more are taken than it has permits for. While another claim takes from it, it is passed over: two claims
-- that waited for each other's queues would never end. The end of the answer says in how many seconds the next permit is due.
create function onward.claim(
    columns text, worker text, all_queues boolean, names text[], prefixes text[], last_name text, slots integer, lease interval,
    isolated boolean, max_reads integer, read_modes jsonb, finished bigint[], max_bytes bigint)
  returns setof onward.claim_row
  language plpgsql as $$
declare
  now_at       timestamptz;
  queues       record;
  pending      integer[];
  next_round   integer[];
  free_slots   integer := case when isolated then least(slots, 1) else slots end;
  share        integer;
  claimed      integer;
  queue_index  integer;
  name         text;
  queue_lease  interval;
  read_mode    jsonb;
  suspects     bigint[];
  settings     jsonb;
  has_suspects boolean := false;
  bytes_left   bigint := max_bytes;
  is_full      boolean := false;
  line         onward.claim_row;
  permits      record;
  next_permit  bigint;
  start_within bigint;
begin
  if cardinality(finished) > 0 then
    delete from onward.lease_batch h where h.id = any (finished);
  end if;
  now_at := clock_timestamp();
  select array_agg(o.name) as names, array_agg(o.lease) as leases, array_agg(o.max_attempts) as attempts,
         array_agg(o.backoff) as backoffs, array_agg(o.limited) as limited into queues
    from (select m.queue_name::text as name, q.lease, q.max_attempts, q.backoff, l.queue is not null as limited
            from pgmq.meta m left join onward.queue q on q.name = m.queue_name left join onward.queue_limit l on l.queue = m.queue_name
           where (all_queues or m.queue_name = any (names)
                  or exists (select from unnest(prefixes) p (prefix) where starts_with(m.queue_name, p.prefix)))
             and not coalesce(q.paused, false)
           order by m.queue_name collate "C" <= last_name collate "C", m.queue_name collate "C") o;
  pending := array(select generate_series(1, coalesce(array_length(queues.names, 1), 0)));
  while free_slots > 0 and cardinality(pending) > 0 and not is_full loop
    next_round := '{}';
    for turn in 1 .. cardinality(pending) loop
      exit when free_slots <= 0 or is_full;
      queue_index := pending[turn];
      name := queues.names[queue_index];
      queue_lease := coalesce(queues.leases[queue_index], lease);
      read_mode := coalesce(read_modes -> name, read_modes -> '');
      suspects := array(select s.msg_id from onward.suspect s where s.queue = name and s.losses >= 2);
      if isolated and cardinality(suspects) = 0 then
        continue;
      end if;
      share := ceil(free_slots::numeric / (cardinality(pending) - turn + 1));
      start_within := null;
      if queues.limited[queue_index] then
        perform from onward.queue_limit l where l.queue = name for update skip locked;
        if not found then
          next_permit := 10000;
          continue;
        end if;
        select * into permits from onward.take_queue_permits(name, share, onward.held_count(name));
        next_permit := least(next_permit, permits.retry_after);
        start_within := permits.start_within;
        share := permits.permitted;
        if share = 0 then
          continue;
        end if;
      end if;
      settings := jsonb_build_array(onward.to_micros(queue_lease), queues.attempts[queue_index], queues.backoffs[queue_index],
                                    start_within, queues.limited[queue_index]);
      claimed := 0;
      for line in execute
        case when read_mode ->> 'function' is null or isolated
             then 'select * from onward.claim_queue($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)'
             else 'select * from onward.claim_with_function($1, $2, $3, $4, $5, $6, $7, $8, $9, $12, $13)' end
        using read_mode ->> 'function', name, worker, now_at, queue_lease, share, max_reads, nullif(read_mode -> 'where', 'null'), settings,
              suspects, isolated, columns, bytes_left
      loop
        if line.kind = 'f' then
          is_full := true;
          continue;
        elsif line.kind = 'm' then
          claimed := claimed + 1;
          bytes_left := bytes_left - octet_length(line.payload);
        end if;
        return next line;
      end loop;
      if queues.limited[queue_index] and claimed < share then
        perform onward.give_up_permits(permits.token);
        if claimed > 0 then
          perform onward.take_queue_permits(name, claimed, 0);
        end if;
      end if;
      is_full := is_full or bytes_left <= 0;
      free_slots := free_slots - claimed;
      if claimed > 0 then
        claim.last_name := name;
      end if;
      if claimed >= share then
        next_round := next_round || queue_index;
      end if;
    end loop;
    pending := next_round;
  end loop;
  for name, suspects in
    select s.queue, array_agg(s.msg_id) from onward.suspect s
     where s.queue = any (queues.names) and s.losses >= 2 group by s.queue
  loop
    execute format('select $1 or exists (select from pgmq.%I where msg_id = any ($2) and vt <= $3)', 'q_' || lower(name))
      into has_suspects using has_suspects, suspects, now_at;
  end loop;
  return next ('e', is_full::integer, has_suspects::integer, next_permit / 1e6, claim.last_name, null, null, null)::onward.claim_row;
end $$;
