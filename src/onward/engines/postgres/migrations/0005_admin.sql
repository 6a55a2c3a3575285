-- The buttons that people press, and what the leader does for all.

-- Take jobs back, wherever they are in their life before its end; a held one is taken from its worker by the fence.
--
-- Without `wait_for_locks`, rows that somebody is writing are passed over, to be asked for again one at a time: who holds many rows
-- never waits for another.
create function onward.cancel_many(now bigint, channel text, seqs bigint[], reason text, wait_for_locks boolean)
  returns table (seq bigint, queue text, id text, before text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz := coalesce(onward.to_timestamp(cancel_many.now), clock_timestamp());
begin
  if wait_for_locks then
    perform from onward.job j where j.seq = any (seqs) order by j.seq for update;
  else
    seqs := array(select j.seq from onward.job j where j.seq = any (seqs) order by j.seq for update skip locked);
  end if;
  return query
  with ended as (
    delete from onward.job j where j.seq = any (seqs) returning j.*),
  kept as (
    insert into onward.history (seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at,
                                started_at, id, max_attempts, priority, attempts, crashes, progress, queue, status, type,
                                payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff,
                                last_error, errors, progress_message, batch)
    select seq, claim_no, created_at, greatest(now_at, updated_at + interval '1 microsecond'), now_at, next_run_at, start_by,
           claimed_at, started_at, id, max_attempts, priority, attempts, crashes, progress, queue, 'cancelled', type, payload,
           org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff, reason, errors,
           progress_message, batch
      from ended),
  batch_events as (
    insert into onward.batch_event (batch, job, succeeded, cancelled)
    select batch, case when has_dependents then id end, false, count(*) from ended where batch is not null group by 1, 2)
  select e.seq, e.queue, e.id::text, onward.status_of(e.ready_at, e.next_run_at, e.lease_until, e.started_at) from ended e order by e.seq;
  if found then
    perform onward.send_notice(channel, '!');
    perform onward.send_notice(channel, '*');  -- their permits are free
  end if;
end $$;

-- Replay ended jobs, unless another has taken their dedupe key in the meantime. Gives up where another transaction has one locked.
create function onward.replay_many(now bigint, channel text, seqs bigint[])
  returns table (seq bigint, queue text, id text, before text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := coalesce(onward.to_timestamp(replay_many.now), clock_timestamp());
  old    onward.history;
begin
  for old in select * from onward.history h
              where h.seq = any (seqs) and h.status <> 'completed' order by h.seq for update loop
    insert into onward.job (seq, claim_no, created_at, updated_at, ready_at, id, max_attempts, priority, queue, type,
                            payload, org_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff, last_error,
                            errors, batch)
    values (old.seq, old.claim_no, old.created_at, greatest(now_at, old.updated_at + interval '1 microsecond'), now_at, old.id,
            old.max_attempts, old.priority, old.queue, old.type, old.payload, old.org_id, old.idempotency_key,
            old.key_digest, old.dedupe_key, old.dedupe_digest, old.backoff, old.last_error, old.errors, old.batch)
    on conflict (dedupe_digest) where dedupe_digest is not null do nothing;
    continue when not found;
    if old.key_digest is not null then  -- its day may be on its way into the archive, and the key gone: see remove_keys_of_day()
      insert into onward.key (digest, id, queue) values (old.key_digest, old.id, old.queue) on conflict do nothing;
    end if;
    delete from onward.history h where h.seq = old.seq and h.status = old.status and h.completed_at = old.completed_at;
    if old.batch is not null then
      insert into onward.batch_event (batch, failed, cancelled)
      values (old.batch, -(old.status <> 'cancelled')::integer, -(old.status = 'cancelled')::integer);
    end if;
    perform onward.open_lanes(replay_many.now, array[old.queue], array[old.priority], array[now_at]);
    perform pg_notify(channel, '*');
    return query select old.seq, old.queue, old.id::text, old.status;
  end loop;
end $$;

-- Remove jobs, with their keys and logs. A held one stays.
create function onward.delete_many(seqs bigint[]) returns table (seq bigint, queue text, id text, before text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
  with live as (
    delete from onward.job j where j.seq = any (seqs) and j.lease_until is null
    returning j.seq, j.queue, j.id, onward.status_of(j.ready_at, j.next_run_at, j.lease_until, j.started_at) as status,
              j.key_digest, j.batch, j.has_dependents),
  batch_events as (
    insert into onward.batch_event (batch, job, succeeded, cancelled)
    select batch, case when has_dependents then id end, false, count(*) from live where batch is not null group by 1, 2),
  ended as (
    delete from onward.history h where h.seq = any (seqs)
    returning h.seq, h.queue, h.id, h.status, h.key_digest),
  gone as (select seq, queue, id, status, key_digest from live union all select * from ended),
  keys as (delete from onward.key k using gone g where k.digest = g.key_digest and k.id = g.id),
  logs as (delete from onward.log l using gone g where l.seq = g.seq)
  select g.seq, g.queue, g.id::text, g.status from gone g order by g.seq;
end $$;

-- Change what a queue is told to do; makes the queue if there is none. What is not in `change` stays as it is.
--
-- All claims wait for this. So it waits for none for long, such as for a job of the queue in a transaction that stays open: it is
-- given up then, and may be tried again.
create function onward.configure(now bigint, channel text, name text, change jsonb) returns void
  language plpgsql
  set lock_timeout = '300ms'
as $$
#variable_conflict use_column
declare
  now_at   timestamptz := coalesce(onward.to_timestamp(configure.now), clock_timestamp());
  old      onward.queue;
  settings onward.queue;
begin
  -- Claims do not lock the rows of unlimited queues. This waits until none is under way, and lets none begin.
  lock table onward.claim_gate in exclusive mode;
  insert into onward.queue (name, created_at) values (configure.name, now_at) on conflict do nothing;
  select * into old from onward.queue q where q.name = configure.name collate "C" for update;
  settings := jsonb_populate_record(old, change);
  update onward.queue q
     set paused = settings.paused, pause_reason = case when settings.paused then settings.pause_reason end,
         paused_by = case when settings.paused then settings.paused_by end,
         paused_at = case when settings.paused then coalesce(old.paused_at, now_at) end, weight = settings.weight, global_concurrency = settings.global_concurrency, rate_count = settings.rate_count,
         rate_period = settings.rate_period, rate_burst = settings.rate_burst, spacing = settings.spacing, credit = settings.credit,
         reach = settings.reach, lease = settings.lease, max_attempts = settings.max_attempts, backoff = settings.backoff,
         keep_completed = settings.keep_completed, keep_completed_count = settings.keep_completed_count,
         keep_failed = settings.keep_failed, keep_failed_count = settings.keep_failed_count, keep_cancelled = settings.keep_cancelled,
         keep_archived = settings.keep_archived
   where q.name = old.name;

  if (old.global_concurrency is null) <> (settings.global_concurrency is null) then
    with held as (
      update onward.job j set has_permit = settings.global_concurrency is not null,
             updated_at = j.updated_at + interval '1 microsecond'
       where j.queue = old.name and j.ready_at is not null and j.lease_until is not null
      returning j.seq, j.queue, j.has_permit)
    insert into onward.concurrency_permit (seq, queue) select h.seq, h.queue from held h where h.has_permit on conflict do nothing;
    delete from onward.concurrency_permit p where p.queue = old.name and settings.global_concurrency is null;
  end if;
  if settings.paused and not old.paused then
    delete from onward.lane l where l.queue = old.name;
  elsif old.paused and not settings.paused then
    insert into onward.lane (queue, priority, low_mark)
    select distinct old.name, j.priority, timestamptz '-infinity' from onward.job j
     where j.queue = old.name and j.ready_at is not null and not j.suspect;
  end if;
  perform pg_notify(channel, '*');
end $$;
