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

-- Take messages of several queues, which take turns: `last_name` is the one that was served last. `read_modes` says for a queue,
-- or for '' and so for all, by which function it is read, and a condition on its messages. `finished` are batches of which all is settled.
-- `max_bytes` is the most that the messages may have together, but for the last; what does not fit is left.
-- Of a queue with limits no more are taken than it has permits for. While another claim takes from it, it is passed over: two claims
-- that waited for each other's queues would never end. The end of the answer says in how many seconds the next permit is due.
create or replace function onward.claim(
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
