-- Saying how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost.
--
-- Jobs are matched by `seq between s.seq and s.seq`. With an equality the planner may choose, while the table is small, to read
-- all of it in the order of its key beside the list; the plan is kept, and the table grows.

-- Add a failed attempt to a job's errors; the newest 20 are kept.
create function onward.append_error(errors jsonb, failure text, now_at timestamptz, attempt integer, worker_id text) returns jsonb
  language sql stable parallel safe
  return case when failure is null then errors
              else case when jsonb_typeof(errors) is distinct from 'array' then '[]'
                        when jsonb_array_length(errors) >= 20 then errors - 0 else errors end
                   || jsonb_build_array(failure::jsonb || jsonb_build_object(
                        'attempt', attempt, 'worker_id', worker_id,
                        'at', to_char(now_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) end;

-- Record how runs ended; answer the claims that were lost. Job 0 among them says that jobs of a batch have ended, and its
-- claim is 1 if others wait for one of them: see onward.advance_batches.
--
-- completed_*  jobs that are completed; their results as JSON. An array that is too short stands for nulls.
-- ended_*      jobs that end otherwise, and how: status failed, dead_letter or cancelled; the reason shown as last_error; the
--              failure as JSON, for the list of errors.
-- returned_*   jobs that go on: retry, snooze or release; after how long, and why.
create function onward.settle(
  now bigint, channel text,
  completed_seqs bigint[], completed_claims bigint[], completed_results text[],
  ended_seqs bigint[], ended_claims bigint[], ended_statuses text[], ended_reasons text[], ended_failures text[],
  returned_seqs bigint[], returned_claims bigint[], returned_moves text[], returned_delays bigint[], returned_reasons text[],
  returned_failures text[]
) returns table (seq bigint, claim_no bigint)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at         timestamptz := coalesce(onward.to_timestamp(settle.now), clock_timestamp());
  done           record;
  freed          boolean;
  due_soon       boolean;
  returned       record;
  in_batch       boolean;
  has_dependents boolean;
begin
  if cardinality(completed_seqs) > 0 then
    with ended as (  -- returned first: what is looked at more than once
      delete from onward.job j
       using unnest(completed_seqs, completed_claims, completed_results) s (seq, claim_no, result)
       where j.seq between s.seq and s.seq and j.claim_no = s.claim_no and j.lease_until is not null and j.started_at is not null
      returning j.seq, j.has_permit, j.batch, j.has_dependents, j.claim_no, j.created_at, j.updated_at, j.next_run_at, j.start_by,
                j.claimed_at, j.started_at, j.id, j.max_attempts, j.priority, j.attempts, j.crashes, j.progress, j.queue, j.type,
                j.payload, j.org_id, j.worker_id, j.idempotency_key, j.key_digest, j.dedupe_key, j.dedupe_digest, j.backoff,
                j.last_error, j.errors, j.progress_message, s.result),
    kept as (  -- by the part itself: to find it by the status would cost each job as much again
      insert into onward.history_done (seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at,
                                       started_at, id, max_attempts, priority, attempts, crashes, progress, queue, status, type,
                                       payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest,
                                       backoff, last_error, errors, progress_message, batch, result)
      select seq, claim_no, created_at, greatest(now_at, updated_at + interval '1 microsecond'), now_at, next_run_at, start_by,
             claimed_at, started_at, id, max_attempts, priority, attempts, crashes, progress, queue, 'completed', type,
             payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff, last_error, errors,
             progress_message, batch, result::json
        from ended),
    batch_events as (
      insert into onward.batch_event (batch, job, succeeded, completed)
      select batch, case when has_dependents then id end, true, count(*) from ended where batch is not null group by 1, 2)
    select array_agg(seq) as seqs, bool_or(has_permit) as freed, bool_or(batch is not null) as in_batch,
           bool_or(has_dependents) as has_dependents into done from ended;
    freed := done.freed;
    in_batch := done.in_batch;
    has_dependents := done.has_dependents;
    if cardinality(done.seqs) is distinct from cardinality(completed_seqs) then
      return query
      select s.seq, s.claim_no from unnest(completed_seqs, completed_claims) s (seq, claim_no)
       where (s.seq = any (done.seqs)) is not true;
    end if;
  end if;

  if cardinality(ended_seqs) > 0 then
    with ended as (
      delete from onward.job j
       using unnest(ended_seqs, ended_claims, ended_statuses, ended_reasons, ended_failures)
             s (seq, claim_no, status, reason, failure)
       where j.seq between s.seq and s.seq and j.claim_no = s.claim_no
         and j.lease_until is not null and (j.started_at is not null or s.status in ('failed', 'cancelled'))
      returning j.*, s.status as end_status, s.reason, s.failure),
    kept as (
      insert into onward.history (seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at,
                                  started_at, id, max_attempts, priority, attempts, crashes, progress, queue, status, type,
                                  payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff,
                                  last_error, errors, progress_message, batch)
      select seq, claim_no, created_at, greatest(now_at, updated_at + interval '1 microsecond'), now_at, next_run_at, start_by,
             claimed_at, started_at, id, max_attempts, priority, attempts, crashes, progress, queue, end_status, type,
             payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff,
             coalesce(reason, last_error), onward.append_error(errors, failure, now_at, attempts, worker_id), progress_message,
             batch
        from ended),
    batch_events as (
      insert into onward.batch_event (batch, job, succeeded, failed, cancelled)
      select batch, case when has_dependents then id end, false, count(*) filter (where end_status <> 'cancelled'),
             count(*) filter (where end_status = 'cancelled')
        from ended where batch is not null group by 1, 2)
    select array_agg(seq) as seqs, array_agg(claim_no) as claims, bool_or(has_permit) as freed,
           bool_or(batch is not null) as in_batch, bool_or(has_dependents) as has_dependents into done from ended;
    in_batch := coalesce(in_batch, false) or coalesce(done.in_batch, false);
    has_dependents := coalesce(has_dependents, false) or coalesce(done.has_dependents, false);
    freed := coalesce(freed, false) or coalesce(done.freed, false);
    if cardinality(done.seqs) is distinct from cardinality(ended_seqs) then
      return query
      select * from unnest(ended_seqs, ended_claims) except select * from unnest(done.seqs, done.claims);
    end if;
  end if;

  if cardinality(returned_seqs) > 0 then
    with returned as (
      update onward.job j
         set ready_at = case when s.move = 'release' then j.ready_at end,
             next_run_at = case when s.move = 'release' then null else now_at + onward.to_interval(s.delay) end,
             -- Whoever has set it to 0 by hand, to give the job more tries, is not to be failed for that.
             attempts = greatest(j.attempts - case when s.move <> 'retry' and j.started_at is not null then 1 else 0 end, 0),
             -- No handler ran: nothing is known of the job that was not known before.
             suspect = j.suspect and s.move in ('release', 'put_back'), was_lost = j.was_lost and s.move in ('release', 'put_back'),
             worker_id = case when s.move = 'release' then null else j.worker_id end,
             lease_until = null, has_permit = false,
             last_error = coalesce(s.reason, j.last_error),
             errors = onward.append_error(j.errors, s.failure, now_at, j.attempts, j.worker_id),
             updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
        from unnest(returned_seqs, returned_claims, returned_moves, returned_delays, returned_reasons, returned_failures)
             s (seq, claim_no, move, delay, reason, failure)
       where j.seq between s.seq and s.seq and j.claim_no = s.claim_no
         and j.lease_until is not null and (j.started_at is not null or s.move = 'release')
      returning j.seq, j.claim_no, j.queue, j.priority, j.ready_at, j.next_run_at)
    select bool_or(next_run_at < now_at + interval '10 seconds') as due_soon, array_agg(seq) as seqs, array_agg(claim_no) as claims, array_agg(queue) as all_queues,
           array_agg(queue) filter (where ready_at is not null) as queues,
           array_agg(priority::integer) filter (where ready_at is not null) as priorities,
           array_agg(ready_at) filter (where ready_at is not null) as since
      into returned from returned;
    due_soon := returned.due_soon;
    delete from onward.concurrency_permit p where p.seq = any (returned.seqs);
    if returned.queues is not null then
      perform onward.open_lanes(settle.now, returned.queues, returned.priorities, returned.since);
      freed := true;
    elsif freed is not true then
      freed := exists (select from onward.queue q where q.name = any (returned.all_queues) and q.global_concurrency is not null);
    end if;
    if cardinality(returned.seqs) is distinct from cardinality(returned_seqs) then
      return query
      select * from unnest(returned_seqs, returned_claims) except select * from unnest(returned.seqs, returned.claims);
    end if;
  end if;
  if in_batch then return query select 0::bigint, coalesce(has_dependents, false)::integer::bigint; end if;
  -- A job is ready, or there is a permit for one that waits; one comes due before whoever leads would look by itself.
  if freed or due_soon then perform onward.send_notice(channel, concat_ws(',', case when freed then '*' end, case when due_soon then '@' end)); end if;
end $$;

-- Do the same in a caller's transaction. One that keeps its snapshot from statement to statement is not used: it can change no row that
-- has changed since its first statement, and a heartbeat or a progress report changes the job's. Answers its isolation level instead.
create function onward.settle_in_transaction(
  now bigint, channel text,
  completed_seqs bigint[], completed_claims bigint[], completed_results text[],
  ended_seqs bigint[], ended_claims bigint[], ended_statuses text[], ended_reasons text[], ended_failures text[],
  returned_seqs bigint[], returned_claims bigint[], returned_moves text[], returned_delays bigint[], returned_reasons text[],
  returned_failures text[]
) returns table (seq bigint, claim_no bigint, refused text)
  language plpgsql
as $$
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    return query select null::bigint, null::bigint, current_setting('transaction_isolation');
    return;
  end if;
  return query
  select s.seq, s.claim_no, null from onward.settle(
    now, channel, completed_seqs, completed_claims, completed_results, ended_seqs, ended_claims, ended_statuses, ended_reasons,
    ended_failures, returned_seqs, returned_claims, returned_moves, returned_delays, returned_reasons, returned_failures) s;
end $$;

-- Hold those of some jobs that nobody else does, until the transaction ends; answer the others. Somebody's transaction may have
-- named one as a dependency, have met its key, or be cancelling it: how long that takes is anybody's guess, and the outcomes of all
-- others need not wait for it.
create function onward.lock_available(seqs bigint[]) returns bigint[]
  language sql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
  with free as materialized (
    select j.seq from onward.job j where j.seq = any (seqs) order by j.seq for update skip locked)
  select coalesce(array_agg(j.seq), '{}') from onward.job j where j.seq = any (seqs) and j.seq not in (select f.seq from free f)
$$;

-- Record that the handlers of claimed jobs start now; answer the claims that were lost. A job that has expired is not
-- started, and ends here.
create function onward.start(now bigint, seqs bigint[], claims bigint[]) returns table (seq bigint, claim_no bigint)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at  timestamptz := coalesce(onward.to_timestamp(start.now), clock_timestamp());
  started record;
  late    bigint[];
begin
  if cardinality(start.seqs) = 0 then return; end if;
  with started as (
    update onward.job j
       set attempts = j.attempts + 1, started_at = now_at,
           updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
      from unnest(start.seqs, start.claims) s (seq, claim_no)
     where j.seq between s.seq and s.seq and j.claim_no = s.claim_no and j.lease_until is not null and j.started_at is null
       and (j.start_by is null or j.start_by > now_at)
    returning j.seq, j.claim_no)
  select array_agg(seq) as seqs, array_agg(claim_no) as claims into started from started;
  if cardinality(started.seqs) is distinct from cardinality(start.seqs) then
    select array_agg(j.seq) into late
      from unnest(start.seqs, start.claims) s (seq, claim_no)
      join onward.job j on j.seq between s.seq and s.seq and j.claim_no = s.claim_no and j.lease_until is not null and j.started_at is null
       and j.start_by <= now_at;
    if late is not null then perform onward.expire(now_at, late); end if;
    return query
    select * from unnest(start.seqs, start.claims) except select * from unnest(started.seqs, started.claims);
  end if;
end $$;

-- Cancel jobs that were not started in time, of those given; answer how many.
create function onward.expire(now_at timestamptz, seqs bigint[]) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  expired bigint;
begin
  with ended as (
    delete from onward.job j
     where j.seq = any (seqs) and j.start_by <= now_at and (j.lease_until is null or j.started_at is null)
    returning j.*),
  batch_events as (
    insert into onward.batch_event (batch, job, succeeded, cancelled)
    select batch, case when has_dependents then id end, false, count(*) from ended where batch is not null group by 1, 2)
  insert into onward.history (seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at,
                              started_at, id, max_attempts, priority, attempts, crashes, progress, queue, status, type,
                              payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff,
                              last_error, errors, progress_message, batch)
  select seq, claim_no, created_at, greatest(now_at, updated_at + interval '1 microsecond'), now_at, next_run_at, start_by,
         claimed_at, started_at, id, max_attempts, priority, attempts, crashes, progress, queue, 'cancelled', type, payload,
         org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff, 'expired: not started in time',
         errors, progress_message, batch
    from ended;
  get diagnostics expired = row_count;
  return expired;
end $$;

-- Register a worker or say that it is alive, extend the leases of what it holds, and answer what it holds no longer.
--
-- A heartbeat never waits: a row that another transaction has locked is skipped. It is being settled or taken back, or a caller's
-- transaction has it, for as long as that likes: so the heartbeat is written down, and rescue goes by that.
create function onward.heartbeat(
  now bigint, worker_id text, hostname text, pool_size integer, version text, queues text[], types text[],
  seqs bigint[], claims bigint[]
) returns table (seq bigint, claim_no bigint, was_cancelled boolean, command text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at  timestamptz := coalesce(onward.to_timestamp(heartbeat.now), clock_timestamp());
  renewed bigint[];
  told    text;
begin
  insert into onward.worker as w (id, hostname, pool_size, version, queues, types, started_at, last_heartbeat)
  values (heartbeat.worker_id, heartbeat.hostname, heartbeat.pool_size, heartbeat.version, heartbeat.queues, heartbeat.types,
          now_at, now_at)
  on conflict (id) do update
     set last_heartbeat = now_at, pool_size = excluded.pool_size, queues = excluded.queues, types = excluded.types
  returning w.command into told;
  if told is not null then
    return query select null::bigint, null::bigint, false, told;
  end if;
  if cardinality(seqs) > 0 then
    with beaten as (
      update onward.job j set lease_until = now_at + j.lease
       where j.ctid = any (array(
               select h.ctid from unnest(seqs, claims) s (seq, claim_no)
                 join onward.job h on h.seq between s.seq and s.seq and h.claim_no = s.claim_no and h.lease_until is not null
                  for update of h skip locked))
      returning j.seq)
    select array_agg(b.seq) into renewed from beaten b;
    if cardinality(renewed) is distinct from cardinality(seqs) then
      insert into onward.deferred_heartbeat as d (seq, claim_no, until)
      select s.seq, s.claim_no, now_at + h.lease from unnest(seqs, claims) s (seq, claim_no)
        join onward.job h on h.seq between s.seq and s.seq and h.claim_no = s.claim_no and h.lease_until is not null
       where s.seq <> all (coalesce(renewed, '{}'))
       order by s.seq
      on conflict (seq) do update set claim_no = excluded.claim_no, until = excluded.until;
    end if;
    return query
      select s.seq, s.claim_no,
             exists (select from onward.history h
                      where h.seq = s.seq and h.claim_no = s.claim_no and h.status = 'cancelled'),
             null::text
        from unnest(seqs, claims) s (seq, claim_no)
       where not exists (select from onward.job j
                          where j.seq between s.seq and s.seq and j.claim_no = s.claim_no and j.lease_until is not null);
  end if;
end $$;
