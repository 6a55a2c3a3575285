-- Batches: jobs that are counted together; dependencies between the jobs of one, which then wait for each other; and throttles, by which
-- jobs are throttled and debounced.

create table onward.batch (
  seq         bigint      generated always as identity unique,
  name        text        collate "C" primary key,
  queue       text        collate "C",
  sealed      boolean     not null default false,
  stopped     boolean     not null default false,  -- what had not started then was cancelled, and nothing can be added
  total       bigint      not null default 0,
  completed   bigint      not null default 0,
  failed      bigint      not null default 0,
  cancelled   bigint      not null default 0,
  -- Jobs to be, as JSON. Each is taken out by whoever enqueues it.
  on_success  text,
  on_failure  text,
  on_finished text,
  created_at  timestamptz not null,
  finished_at timestamptz,
  check (finished_at is null or sealed)
) with (fillfactor = 50);

create index batch_finished on onward.batch (finished_at) where finished_at is not null;

create table onward.dependency (
  job        uuid    not null,
  position   integer not null,                 -- in what the job has named
  depends_on uuid    not null,
  batch      text    collate "C" not null,
  done       boolean not null default false,   -- the job knows how it ended
  primary key (job, position)
);

create index dependency_unresolved on onward.dependency (depends_on) where not done;
create index dependency_batch on onward.dependency (batch);

-- What is still to be thought through: that jobs of a batch have ended, and which of them others wait for. Whoever ends jobs
-- only adds a row, so that nobody waits for another over a batch's counts; onward.advance_batches takes the rows out again.
create table onward.batch_event (
  no        bigint  generated always as identity primary key,
  batch     text    collate "C" not null,
  job       uuid,                          -- one that others wait for
  succeeded boolean,                       -- it has completed; null: it may not have ended yet, which is to be found out
  stops     boolean not null default false,  -- what has not started of the batch is to be cancelled
  completed integer not null default 0,
  failed    integer not null default 0,
  cancelled integer not null default 0
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

create table onward.throttle (
  digest bytea       primary key,
  until  timestamptz not null,
  queue  text        collate "C" not null,
  id     uuid        not null
) with (fillfactor = 50);

create index throttle_until on onward.throttle (until);

-- Do what the ends of jobs mean for others, a part at a time. With a number, only as the leader of that term. Answers whether
-- there may be more to do (null: all that is left is held by others' transactions, so that it is of no use to come back at
-- once), the callbacks whose time has come, to be enqueued in this transaction, and in how many queues jobs have become ready.
--
-- A caller's transaction may be open for as long as it likes, and holds the rows of the batches that it adds jobs to. What it
-- holds is passed over, and the events of it stay where they are: if they were waited for, the events of all other batches would
-- wait as well, and nobody could be elected, since a leader holds the row of its term meanwhile.
create function onward.advance_batches(now bigint, channel text, number bigint, leader_id text, max_rows integer)
  returns table (more boolean, callbacks text[], ready bigint)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at       timestamptz := coalesce(onward.to_timestamp(advance_batches.now), clock_timestamp());
  page         record;
  taken_events record;
  resolved     record;
  unblocked    record;
  one          onward.batch;
  seqs         bigint[];
  free         text[];
  busy         text[];
  held         text[];
  ours         uuid[];
  others       uuid[];
  later        boolean := false;
begin
  more := false; callbacks := '{}'; ready := 0;
  if advance_batches.number is not null and not onward.is_leader(now_at, advance_batches.number, advance_batches.leader_id) then
    return next;
    return;
  end if;
  -- Until the transaction ends, so that it holds for the callbacks too: they may have a key that a caller has just used.
  perform set_config('lock_timeout', '100ms', true);
  for turn in 1..2 loop
    held := '{}';
    loop
      select count(*) as count, array_agg(w.no) as nos, array_agg(distinct w.batch) as batches into page
        from (select t.no, t.batch from onward.batch_event t where t.batch <> all (held) order by t.no limit max_rows) w;
      -- Of a batch that is there no more, the events are only taken out.
      free := array(select b.name from onward.batch b where b.name = any (page.batches) order by b.name for update skip locked);
      busy := array(select b.name from onward.batch b where b.name = any (page.batches) and b.name <> all (free));
      held := held || busy;
      with taken as (
        delete from onward.batch_event n
         where n.no = any (array(select t.no from onward.batch_event t
                                  where t.no = any (page.nos) and t.batch <> all (busy) order by t.no for update skip locked))
        returning n.*)
      select count(*) as count, array_agg(distinct t.batch) as batches,
             array_agg(t.job) filter (where t.job is not null and t.succeeded is not null) as jobs,
             array_agg(t.succeeded) filter (where t.job is not null and t.succeeded is not null) as succeeded_flags,
             array_agg(t.job) filter (where t.job is not null and t.succeeded is null) as unknown_jobs,
             array_agg(t.batch) filter (where t.job is not null and t.succeeded is null) as unknown_batches,
             array_agg(t.batch) filter (where t.stops) as stopping,
             array_agg(t.batch) as of, array_agg(t.completed) as completed, array_agg(t.failed) as failed,
             array_agg(t.cancelled) as cancelled
        into taken_events from taken t;
      exit when taken_events.count > 0 or cardinality(busy) = 0;
    end loop;
    exit when taken_events.count > 0;
    if cardinality(held) = 0 then
      return next;
      return;
    end if;
    more := null;
    if turn = 2 then
      return next;
      return;
    end if;
    -- A batch that many add to, one after the other, is hardly ever free: one has to queue up for it, for a moment. For which,
    -- is left to chance: always the same one may never come free.
    begin
      perform from onward.batch b
        where b.name = (select h from unnest(held) h order by random() limit 1) for update;
    exception when lock_not_available then
      return next;
      return;
    end;
  end loop;
  -- What is held is come back to at once only after something was done: then nothing else is left, and it is queued up for.
  more := page.count = max_rows or cardinality(held) > 0;
  update onward.batch b
     set completed = b.completed + n.completed, failed = b.failed + n.failed, cancelled = b.cancelled + n.cancelled
    from (select u.batch, sum(u.completed) as completed, sum(u.failed) as failed, sum(u.cancelled) as cancelled
            from unnest(taken_events.of, taken_events.completed, taken_events.failed, taken_events.cancelled) u (batch, completed, failed, cancelled)
           group by u.batch) n
   where b.name = n.batch;

  -- Jobs that were held when they were named as dependencies. A live one gets its flag now, and whatever ends it leaves an event. One
  -- that is being written is asked for again. One that is not there has not completed, as far as can be known.
  if taken_events.unknown_jobs is not null then
    ours := array(select j.id from onward.job j where j.id = any (taken_events.unknown_jobs) order by j.seq for update skip locked);
    update onward.job j set has_dependents = true, updated_at = j.updated_at + interval '1 microsecond'
     where j.id = any (ours) and j.has_dependents is not true;
    others := array(select j.id from onward.job j where j.id = any (taken_events.unknown_jobs) and j.id <> all (ours));
    insert into onward.batch_event (batch, job)
    select distinct u.batch, u.job from unnest(taken_events.unknown_batches, taken_events.unknown_jobs) u (batch, job)
     where u.job = any (others);
    if found then later := true; end if;
    select taken_events.jobs || array_agg(u.job) as jobs, taken_events.succeeded_flags || array_agg(u.succeeded) as succeeded_flags
      into resolved
      from (select distinct t.job,
                   exists (select from onward.history h where h.id = t.job and h.status = 'completed')
                   or exists (select from onward.archive a where a.id = t.job and a.status = 'completed') as succeeded
              from unnest(taken_events.unknown_jobs) t (job) where t.job <> all (ours || others)) u;
    taken_events.jobs := resolved.jobs; taken_events.succeeded_flags := resolved.succeeded_flags;
  end if;

  if taken_events.jobs is not null then
    -- Those that wait are told, at most so many, and none that somebody is writing; of a job that more wait for, there will be
    -- an event again. One that is there no more has nothing to be told.
    select count(*) as count, array_agg(o.job) as dependents, array_agg(o.position) as positions, array_agg(o.succeeded) as succeeded_flags into page
      from (select l.job, l.position, j.succeeded
              from unnest(taken_events.jobs, taken_events.succeeded_flags) j (id, succeeded)
              join onward.dependency l on l.depends_on = j.id and not l.done
             limit max_rows) o;
    ours := array(select j.id from onward.job j where j.id = any (page.dependents) order by j.seq for update skip locked);
    others := array(select j.id from onward.job j where j.id = any (page.dependents) and j.id <> all (ours));
    with done as (
      update onward.dependency l set done = true from unnest(page.dependents, page.positions, page.succeeded_flags) o (job, position, succeeded)
       where l.job = o.job and l.position = o.position and o.job <> all (others)
      returning l.job, o.succeeded)
    select array_agg(d.job) as dependents, array_agg(d.succeeded) as succeeded_flags into resolved from done d;
    insert into onward.batch_event (batch, job, succeeded)
    select distinct l.batch, j.id, j.succeeded
      from unnest(taken_events.jobs, taken_events.succeeded_flags) j (id, succeeded) join onward.dependency l on l.depends_on = j.id and not l.done;
    if found and page.count = max_rows and resolved.dependents is not null then more := true;
    elsif found then later := true;
    end if;

    if resolved.dependents is not null then
      with ended as (
        select c.id, count(*) as ended from unnest(resolved.dependents, resolved.succeeded_flags) c (id, succeeded)
          join onward.job j on j.id = c.id and j.ready_at is null and j.next_run_at is null
         where c.succeeded or j.on_dependency_failure = 'run' group by c.id),
      unblocked as (
        update onward.job j
           set pending_dependencies = j.pending_dependencies - e.ended, updated_at = greatest(now_at, j.updated_at + interval '1 microsecond'),
               ready_at = case when j.pending_dependencies = e.ended then now_at end
          from ended e where j.id = e.id
        returning j.queue, j.priority, j.ready_at)
      select array_agg(g.queue) as queues, array_agg(g.priority::integer) as priorities, array_agg(g.ready_at) as since
        into unblocked from unblocked g where g.ready_at is not null;
      if unblocked.queues is not null then
        ready := cardinality(unblocked.queues);
        perform onward.open_lanes(advance_batches.now, unblocked.queues, unblocked.priorities, null);
        perform onward.lower_low_marks(advance_batches.now, unblocked.queues, unblocked.priorities, unblocked.since);
        perform pg_notify(channel, '*');
      end if;
      select array_agg(distinct j.seq) filter (where j.on_dependency_failure = 'skip') as skipped,
             array_agg(distinct j.batch) filter (where j.on_dependency_failure = 'cancel') as stopped
        into unblocked
        from unnest(resolved.dependents, resolved.succeeded_flags) c (id, succeeded)
        join onward.job j on j.id = c.id and j.ready_at is null and j.next_run_at is null
       where not c.succeeded;
      if unblocked.skipped is not null then
        perform from onward.cancel_many(advance_batches.now, channel, unblocked.skipped,
                                        'cancelled: a job that it waited for did not complete', true);
        more := true;
      end if;
      update onward.batch b set stopped = true where b.name = any (unblocked.stopped) and b.finished_at is null;
      taken_events.stopping := taken_events.stopping || unblocked.stopped;
    end if;
  end if;

  for one in select * from onward.batch b where b.name = any (taken_events.batches) and b.finished_at is null order by b.name loop
    if one.name = any (taken_events.stopping) then
      seqs := array(select j.seq from onward.job j
                     where j.batch = one.name and j.batch is not null and j.lease_until is null
                     order by j.seq limit max_rows for update skip locked);
      if cardinality(seqs) > 0 then
        perform from onward.cancel_many(advance_batches.now, channel, seqs,
                                        'cancelled: its batch was stopped before it started', true);
        insert into onward.batch_event (batch, stops) values (one.name, true);
        more := true;
        continue;
      end if;
      if exists (select from onward.job j where j.batch = one.name and j.batch is not null and j.lease_until is null) then
        insert into onward.batch_event (batch, stops) values (one.name, true);
        later := true;
      end if;
    end if;
    if one.failed > 0 and one.on_failure is not null then
      callbacks := callbacks || one.on_failure;
      update onward.batch b set on_failure = null where b.name = one.name;
    end if;
    if one.sealed and one.completed + one.failed + one.cancelled >= one.total then
      callbacks := callbacks || array_remove(
        array[case when one.completed = one.total then one.on_success end, one.on_finished], null);
      update onward.batch b set finished_at = now_at, on_success = null, on_failure = null, on_finished = null
       where b.name = one.name;
    end if;
  end loop;
  if later and not more then more := null; end if;
  return next;
end $$;

-- Let jobs of a batch wait for others. Answers those that are not there.
--
-- A dependency that waits is marked. One that is held, or that is being written, is not: this transaction may stay open for long, and
-- the worker could neither renew its lease nor settle it. advance_batches() finds out how it ended, once this is committed. As in
-- touch_waiting(), the block is rolled back where a job is claimed between the read and the lock.
create function onward.add_dependencies(batch text, jobs uuid[], positions integer[], dependencies uuid[]) returns table (unknown text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  waiting uuid[];
  marked  uuid[];
  live    uuid[];
begin
  insert into onward.dependency (job, position, depends_on, batch)
  select u.job, u.position, u.depends_on, add_dependencies.batch from unnest(jobs, positions, dependencies) u (job, position, depends_on);
  loop
    waiting := array(select p.id from onward.job p
                      where p.id = any (dependencies) and p.batch = add_dependencies.batch and p.lease_until is null);
    begin
      marked := array(select p.id from onward.job p
                       where p.id = any (waiting) and p.lease_until is null order by p.seq for update skip locked);
      exit when not exists (select from onward.job p where p.id = any (waiting) and p.lease_until is not null);
      raise exception using errcode = 'OW001';
    exception when sqlstate 'OW001' then null;
    end;
  end loop;
  update onward.job j set has_dependents = true, updated_at = j.updated_at + interval '1 microsecond' where j.id = any (marked);
  -- First those that are live, then those that have ended: a job goes one way, and so none is missed.
  live := array(select p.id from onward.job p where p.id = any (dependencies) and p.batch = add_dependencies.batch);
  insert into onward.batch_event (batch, job) select add_dependencies.batch, l from unnest(live) l where l <> all (marked);
  insert into onward.batch_event (batch, job, succeeded)
  select add_dependencies.batch, h.id, h.status = 'completed' from onward.history h
   where h.id = any (dependencies) and h.batch = add_dependencies.batch and h.id <> all (live);
  return query
  select p::text from (select unnest(dependencies) except select unnest(live)) u (p)
   where not exists (select from onward.history h where h.id = u.p and h.batch = add_dependencies.batch);
end $$;
