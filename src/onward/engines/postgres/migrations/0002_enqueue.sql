-- Putting jobs in. Functions, so that one round trip does it all on anybody's connection, and their plans are kept by the
-- server: nothing needs to be prepared, which poolers would not allow.

-- Until when a listener has shown that it exists, in seconds since 1970. A sequence, because a change of it is seen at once by
-- everybody, in whatever transaction they are. Not an advisory lock: anyone who can connect can take any of those.
create sequence onward.listener_until;

-- Say whether somebody listens: see show_listener.sql. Who begins to listen shows it first and looks for jobs then.
create function onward.has_listener() returns boolean
  language sql volatile
  return coalesce(pg_sequence_last_value('onward.listener_until'::regclass) >= date_part('epoch', clock_timestamp()), false);

-- Notify listeners with the commit. PostgreSQL refuses to prepare a transaction that has notified (two-phase commit), so one that is
-- to be prepared says `set local onward.notify = off` before (the name of the channel, which is the schema's): workers find its jobs by
-- polling.
create function onward.send_notice(channel text, notice text) returns void
  language sql volatile
  return case when current_setting(channel || '.notify', true) is distinct from 'off' then pg_notify(channel, notice) end;

-- Notify listeners with the commit, if there are any, and answer whether: a commit that notifies waits for every other that does.
create function onward.notify_if_listened(channel text, notice text) returns boolean
  language plpgsql
as $$
declare
  has_listener boolean := onward.has_listener();
begin
  if has_listener then perform onward.send_notice(channel, notice); end if;
  return has_listener;
end $$;

-- Say whether it is still so that the lane is open, its queue says nothing of its jobs, and nobody listens.
create function onward.is_cache_valid(text, integer) returns boolean
  language plpgsql
  set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
  perform from onward.lane l where l.queue = $1 collate "C" and l.priority = $2 and l.closing is null limit 1;
  if not found then return false; end if;
  perform from onward.queue q where q.name = $1 collate "C" and num_nonnulls(q.max_attempts, q.backoff) > 0;
  return not found and not onward.has_listener();
end $$;

-- See to it that claims look at these lanes, from as far back as each of these moments, once the jobs are written: the transaction has
-- a number then, and no watermark that goes ahead of it is less than a fifth of a second older than that. So what became ready a
-- moment before now needs no low mark. A new low mark is never above the watermark, for there may be other jobs in between.
--
-- A low mark that is low enough is relied on, and so locked all the same: whoever raises it or takes it away looks once more when it
-- holds that lock, and sees these jobs then. Low marks are locked by one statement and lowered by the next, which sees what they have
-- become while they were waited for.
create function onward.open_lanes(now bigint, queues text[], priorities integer[], since timestamptz[]) returns void
  language plpgsql
  -- Sorts whatever its caller does: else it would go through all lanes, to have these few in order.
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = on
  set plan_cache_mode = force_generic_plan
as $$
declare
  now_at    timestamptz := coalesce(onward.to_timestamp(open_lanes.now), clock_timestamp());
  watermark timestamptz;
begin
  -- Not `not exists`: of that the planner may make a join, which reads all the lanes there are.
  insert into onward.lane (queue, priority)
  select w.queue, w.priority
    from (select distinct * from unnest(open_lanes.queues, open_lanes.priorities)) w (queue, priority)
   where (select true from onward.lane l
           where l.queue = w.queue collate "C" and l.priority = w.priority and l.closing is null limit 1) is null;
  -- In the order of the rows' names, so that two who lower the same low marks do not wait for each other in a circle.
  perform from (select distinct w.queue, w.priority
                  from unnest(open_lanes.queues, open_lanes.priorities, open_lanes.since) w (queue, priority, since)
                 where w.since < now_at - interval '100 milliseconds') w
    join onward.lane l on l.queue = w.queue collate "C" and l.priority = w.priority
   order by l.queue, l.priority
     for update of l;
  if not found then return; end if;
  watermark := onward.watermark();
  update onward.lane l set low_mark = least(w.since, coalesce(l.low_mark, watermark)), moved_at = now_at
    from (select w.queue, w.priority, min(w.since) as since
            from unnest(open_lanes.queues, open_lanes.priorities, open_lanes.since) w (queue, priority, since)
           where w.since < now_at - interval '100 milliseconds'
           group by w.queue, w.priority) w
   where l.queue = w.queue collate "C" and l.priority = w.priority and (l.low_mark is null or l.low_mark > w.since);
end $$;

-- Add jobs without keys that differ in nothing but their payloads, which come as one JSON array: so it is read once, and what
-- stands in it is written as it stands. Answers whether their queue has nothing to say of them, and whether somebody listens (null:
-- it was not asked).
create function onward.enqueue_uniform(
  now bigint, ids uuid[], payloads json, queue text, type text, priority integer, org_id text, delay bigint, run_at bigint,
  start_by bigint, max_attempts bigint, backoff text, batch text, pending_dependencies integer, on_dependency_failure text, trace text,
  channel text, notice text, producer text default null, out is_plain boolean, out has_listener boolean
)
  language plpgsql
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at   timestamptz := onward.enqueue_time(enqueue_uniform.now);
  due      timestamptz := coalesce(now_at + onward.to_interval(enqueue_uniform.delay), onward.to_timestamp(enqueue_uniform.run_at));
  settings record;
begin
  if due <= now_at then due := null; end if;
  select q.max_attempts, q.backoff into settings from onward.queue q where q.name = enqueue_uniform.queue collate "C";
  is_plain := num_nonnulls(settings.max_attempts, settings.backoff) = 0;
  insert into onward.job (id, payload, queue, type, priority, org_id, max_attempts, backoff, ready_at, next_run_at,
                          start_by, created_at, updated_at, batch, pending_dependencies, on_dependency_failure, trace, producer,
                          skip_checks)
  select j.id, j.payload, enqueue_uniform.queue, enqueue_uniform.type, enqueue_uniform.priority, enqueue_uniform.org_id,
         coalesce(enqueue_uniform.max_attempts, settings.max_attempts, 5), coalesce(enqueue_uniform.backoff::json, settings.backoff),
         case when due is null and enqueue_uniform.pending_dependencies is null then now_at end, due,
         onward.to_timestamp(enqueue_uniform.start_by), now_at, now_at,
         enqueue_uniform.batch, enqueue_uniform.pending_dependencies, enqueue_uniform.on_dependency_failure, enqueue_uniform.trace,
         enqueue_uniform.producer, (select not onward.is_recording())
    from rows from (unnest(enqueue_uniform.ids), json_array_elements(enqueue_uniform.payloads)) j (id, payload);
  perform from onward.lane l
    where l.queue = enqueue_uniform.queue collate "C" and l.priority = enqueue_uniform.priority and l.closing is null limit 1;
  if not found then
    insert into onward.lane (queue, priority) values (enqueue_uniform.queue, enqueue_uniform.priority);
  end if;
  if notice is not null then has_listener := onward.notify_if_listened(channel, notice); end if;
end $$;

-- Open a lane for jobs that come by COPY, and tell of them; answer what they get where they do not say it themselves. The lock is the
-- one that COPY takes: who begins to record events waits for those who hold it, as they may have asked before.
create function onward.open_lane(text, integer, max_attempts bigint, backoff text, channel text, notice text)
  returns table (attempts bigint, policy text, skip_checks boolean)
  language plpgsql
  set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  lock table onward.job in row exclusive mode;
  insert into onward.lane (queue, priority) select $1, $2
   where (select true from onward.lane l
           where l.queue = $1 collate "C" and l.priority = $2 and l.closing is null limit 1) is null;
  if notice is not null then perform onward.notify_if_listened(channel, notice); end if;
  return query
  select coalesce($3, (select q.max_attempts from onward.queue q where q.name = $1 collate "C"), 5),
         coalesce($4, (select q.backoff::text from onward.queue q where q.name = $1 collate "C")), not onward.is_recording();
end $$;

-- Add jobs without keys, of which each may be different.
create function onward.enqueue_each(
  now bigint, ids uuid[], payloads json,
  queues text[], types text[], priorities integer[], org_ids text[], delays bigint[], run_ats bigint[], start_bys bigint[],
  max_attempts bigint[], backoffs text[], batches text[], pending_dependency_counts integer[], on_dependency_failures text[], traces text[],
  channel text, notice text
) returns void
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz := onward.enqueue_time(enqueue_each.now);
begin
  insert into onward.job (id, payload, queue, type, priority, org_id, max_attempts, backoff, ready_at, next_run_at,
                          start_by, created_at, updated_at, batch, pending_dependencies, on_dependency_failure, trace, skip_checks)
  select j.id, j.payload, j.queue, j.type, j.priority, j.org_id, coalesce(j.max_attempts, q.max_attempts, 5), coalesce(j.backoff::json, q.backoff),
         case when j.due > now_at or j.pending_dependencies > 0 then null else now_at end, case when j.due > now_at then j.due end,
         onward.to_timestamp(j.start_by), now_at, now_at, j.batch, j.pending_dependencies, j.on_dependency_failure, j.trace,
         (select not onward.is_recording())
    from (select *, coalesce(now_at + onward.to_interval(delay), onward.to_timestamp(run_at)) as due
            from rows from (
                   unnest(enqueue_each.ids), json_array_elements(enqueue_each.payloads), unnest(enqueue_each.queues),
                   unnest(enqueue_each.types), unnest(enqueue_each.priorities), unnest(enqueue_each.org_ids),
                   unnest(enqueue_each.delays), unnest(enqueue_each.run_ats), unnest(enqueue_each.start_bys),
                   unnest(enqueue_each.max_attempts), unnest(enqueue_each.backoffs), unnest(enqueue_each.batches),
                   unnest(enqueue_each.pending_dependency_counts), unnest(enqueue_each.on_dependency_failures), unnest(enqueue_each.traces))
                 with ordinality j (id, payload, queue, type, priority, org_id, delay, run_at, start_by, max_attempts,
                                    backoff, batch, pending_dependencies, on_dependency_failure, trace, no)) j
    left join lateral (select q.max_attempts, q.backoff from onward.queue q
                        where q.name = j.queue collate "C" offset 0) q on true
   order by j.no;
  insert into onward.lane (queue, priority)
  select w.queue, w.priority
    from (select distinct * from unnest(enqueue_each.queues, enqueue_each.priorities)) w (queue, priority)
   where (select true from onward.lane l
           where l.queue = w.queue collate "C" and l.priority = w.priority and l.closing is null limit 1) is null;
  if notice is not null then perform onward.notify_if_listened(channel, notice); end if;
end $$;

-- Move updated_at of live jobs whose idempotency key was met (O4), but not of held ones: the transaction may stay open for long, and
-- a worker could not renew the lease of a job whose row is locked. A row that another transaction has locked is skipped.
--
-- A job that is claimed between the read and the lock fails the recheck, and PostgreSQL keeps its lock all the same: so the block
-- is rolled back, which releases it, and the jobs are read again.
create function onward.touch_waiting(now_at timestamptz, ids uuid[]) returns void
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
  waiting uuid[];
begin
  loop
    waiting := array(select j.id from onward.job j where j.id = any (ids) and j.lease_until is null);
    if cardinality(waiting) = 0 then return; end if;
    begin
      update onward.job j set updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
       where j.ctid = any (array(select w.ctid from onward.job w where w.id = any (waiting) and w.lease_until is null
                                  order by w.seq for update skip locked));
      if not exists (select from onward.job j where j.id = any (waiting) and j.lease_until is not null) then return; end if;
      raise exception using errcode = 'OW001';
    exception when sqlstate 'OW001' then null;
    end;
  end loop;
end $$;

-- Add jobs that have an idempotency key, a dedupe key, or both; no two of them the same. Answers for each in its place what
-- became of it, and which job stands for it. A job that is throttled or debounced has no dedupe_digest: its key is held apart,
-- by throttle_digest.
--
-- All idempotency keys are taken first, then all dedupe keys, each in the order of the digests: so callers with
-- overlapping keys wait for each other in one order, and never in a circle.
create function onward.enqueue_keyed(
  now bigint, ids text[], payloads text[],
  queues text[], types text[], priorities integer[], org_ids text[], delays bigint[], run_ats bigint[], start_bys bigint[],
  max_attempts bigint[], backoffs text[], batches text[], pending_dependency_counts integer[], on_dependency_failures text[], traces text[],
  channel text, notice text,
  seqs bigint[], idempotency_keys text[], key_digests bytea[], dedupe_keys text[], dedupe_digests bytea[],
  throttle_digests bytea[], throttles bigint[], debounces bigint[], producer text default null
) returns table (enqueue_status text, queue text, id text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at           timestamptz := onward.enqueue_time(enqueue_keyed.now);
  count            integer := cardinality(ids);
  enqueue_statuses text[] := array_fill(null::text, array[count]);
  due              timestamptz;
  existing         record;
  settings         record;
  no               integer;
  met              uuid[] := '{}';
begin
  if seqs is null then
    select array_agg(nextval('onward.job_seq')) into seqs from generate_series(1, count);
  end if;

  for no in select o from generate_subscripts(ids, 1) o where key_digests[o] is not null order by key_digests[o] loop
    loop
      insert into onward.key (digest, id, queue, producer)
      values (key_digests[no], ids[no]::uuid, queues[no], enqueue_keyed.producer) on conflict do nothing;
      exit when found;
      select k.id, k.queue into existing from onward.key k where k.digest = key_digests[no];
      if found then
        enqueue_statuses[no] := 'same_key'; ids[no] := existing.id; queues[no] := existing.queue;
        met := met || existing.id;
        perform from onward.job j where j.id = existing.id;
        if not found then
          update onward.history h set updated_at = greatest(now_at, h.updated_at + interval '1 microsecond')
           where h.id = existing.id;
        end if;
        exit;
      end if;
    end loop;
  end loop;

  if cardinality(met) > 0 then perform onward.touch_waiting(now_at, met); end if;

  for no in select o from generate_subscripts(ids, 1) o where enqueue_statuses[o] is null
             order by coalesce(dedupe_digests[o], throttle_digests[o]) nulls last, o loop
    while throttle_digests[no] is not null loop
      insert into onward.throttle (digest, until, queue, id)
      values (throttle_digests[no], now_at + onward.to_interval(coalesce(throttles[no], debounces[no])), queues[no], ids[no]::uuid)
      on conflict do nothing;
      exit when found;
      select h.until, h.queue, h.id into existing from onward.throttle h where h.digest = throttle_digests[no] for update;
      continue when not found;
      if throttles[no] is not null and existing.until > now_at then
        enqueue_statuses[no] := 'deduped';
      elsif debounces[no] is not null then
        update onward.job j
           set payload = payloads[no]::json, updated_at = greatest(now_at, j.updated_at + interval '1 microsecond'),
               next_run_at = case when j.ready_at is null then now_at + onward.to_interval(debounces[no]) end
         where j.id = existing.id and coalesce(j.ready_at, j.next_run_at) is not null and j.lease_until is null and j.attempts = 0;
        if found then enqueue_statuses[no] := 'replaced'; end if;
      end if;
      if enqueue_statuses[no] is null then
        update onward.throttle h
           set until = now_at + onward.to_interval(coalesce(throttles[no], debounces[no])), queue = queues[no], id = ids[no]::uuid
         where h.digest = throttle_digests[no];
      else
        update onward.throttle h set until = now_at + onward.to_interval(debounces[no])
         where h.digest = throttle_digests[no] and debounces[no] is not null;
        delete from onward.key k where k.digest = key_digests[no];
        ids[no] := existing.id; queues[no] := existing.queue;
      end if;
      exit;
    end loop;
    continue when enqueue_statuses[no] is not null;
    due := coalesce(now_at + onward.to_interval(delays[no]), onward.to_timestamp(run_ats[no]));
    if due <= now_at then due := null; end if;
    select q.max_attempts, q.backoff into settings from onward.queue q where q.name = enqueue_keyed.queues[no];
    loop
      insert into onward.job (seq, id, payload, queue, type, priority, org_id, max_attempts, backoff, ready_at,
                              next_run_at, start_by, created_at, updated_at, idempotency_key, key_digest, dedupe_key,
                              dedupe_digest, batch, pending_dependencies, on_dependency_failure, trace, producer, skip_checks)
      values (seqs[no], ids[no]::uuid, payloads[no]::json, queues[no], types[no], priorities[no], org_ids[no],
              coalesce(enqueue_keyed.max_attempts[no], settings.max_attempts, 5), coalesce(backoffs[no]::json, settings.backoff),
              case when due is null and pending_dependency_counts[no] is null then now_at end, due, onward.to_timestamp(start_bys[no]), now_at,
              now_at, idempotency_keys[no], key_digests[no], dedupe_keys[no], dedupe_digests[no], batches[no],
              pending_dependency_counts[no], on_dependency_failures[no], traces[no], enqueue_keyed.producer, not onward.is_recording())
      on conflict (dedupe_digest) where dedupe_digest is not null do nothing;
      if found then
        enqueue_statuses[no] := 'inserted';
        exit;
      end if;
      select j.id, j.queue into existing from onward.job j where j.dedupe_digest = dedupe_digests[no];
      if found then
        delete from onward.key k where k.digest = key_digests[no];
        enqueue_statuses[no] := 'deduped'; ids[no] := existing.id; queues[no] := existing.queue;
        exit;
      end if;
    end loop;
  end loop;

  insert into onward.lane (queue, priority)
  select w.queue, w.priority
    from (select distinct u.queue, u.priority
            from unnest(enqueue_keyed.queues, enqueue_keyed.priorities, enqueue_statuses) u (queue, priority, enqueue_status)
           where u.enqueue_status = 'inserted') w
   where (select true from onward.lane l
           where l.queue = w.queue collate "C" and l.priority = w.priority and l.closing is null limit 1) is null;
  if notice is not null then perform onward.notify_if_listened(channel, notice); end if;
  return query select * from unnest(enqueue_statuses, enqueue_keyed.queues, enqueue_keyed.ids);
end $$;
