-- Batches: jobs that are counted together; links between the jobs of one, which then wait for each other; and holds, by which
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

create table onward.link (
  child  uuid    not null,
  place  integer not null,                 -- in what the child has named
  parent uuid    not null,
  batch  text    collate "C" not null,
  done   boolean not null default false,   -- the child knows how the parent ended
  primary key (child, place)
);

create index link_open on onward.link (parent) where not done;
create index link_batch on onward.link (batch);

-- What is still to be thought through: that jobs of a batch have ended, and which of them others wait for. Whoever ends jobs
-- only adds a row, so that nobody waits for another over a batch's counts; onward.advance takes the rows out again.
create table onward.news (
  no        bigint  generated always as identity primary key,
  batch     text    collate "C" not null,
  job       uuid,                          -- one that others wait for
  well      boolean,                       -- it has completed
  stops     boolean not null default false,  -- what has not started of the batch is to be cancelled
  completed integer not null default 0,
  failed    integer not null default 0,
  cancelled integer not null default 0
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

create table onward.hold (
  digest bytea       primary key,
  until  timestamptz not null,
  queue  text        collate "C" not null,
  id     uuid        not null
) with (fillfactor = 50);

create index hold_until on onward.hold (until);

-- Do what the ends of jobs mean for others, a part at a time. With a number, only as the leader of that term. Answers whether
-- there may be more to do (null: all that is left is held by others' transactions, so that it is of no use to come back at
-- once), the callbacks whose time has come, to be enqueued in this transaction, and in how many queues jobs have become ready.
--
-- A caller's transaction may be open for as long as it likes, and holds the rows of the batches that it adds jobs to. What it
-- holds is passed over, and the news of it stay where they are: if they were waited for, the news of all other batches would
-- wait as well, and nobody could be elected, since a leader holds the row of its term meanwhile.
create function onward.advance(now bigint, channel text, number bigint, leader_id text, most integer)
  returns table (more boolean, callbacks text[], ready bigint)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  moment timestamptz := coalesce(onward.moment(advance.now), clock_timestamp());
  part   record;
  seen   record;
  told   record;
  given  record;
  one    onward.batch;
  seqs   bigint[];
  free   text[];
  busy   text[];
  held   text[];
  ours   uuid[];
  others uuid[];
  later  boolean := false;
begin
  more := false; callbacks := '{}'; ready := 0;
  if advance.number is not null and not onward.is_leader(moment, advance.number, advance.leader_id) then
    return next;
    return;
  end if;
  -- Until the transaction ends, so that it holds for the callbacks too: they may have a key that a caller has just used.
  perform set_config('lock_timeout', '100ms', true);
  for turn in 1..2 loop
    held := '{}';
    loop
      select count(*) as count, array_agg(w.no) as nos, array_agg(distinct w.batch) as batches into part
        from (select t.no, t.batch from onward.news t where t.batch <> all (held) order by t.no limit most) w;
      -- Of a batch that is there no more, the news are only taken out.
      free := array(select b.name from onward.batch b where b.name = any (part.batches) order by b.name for update skip locked);
      busy := array(select b.name from onward.batch b where b.name = any (part.batches) and b.name <> all (free));
      held := held || busy;
      with taken as (
        delete from onward.news n
         where n.no = any (array(select t.no from onward.news t
                                  where t.no = any (part.nos) and t.batch <> all (busy) order by t.no for update skip locked))
        returning n.*)
      select count(*) as count, array_agg(distinct t.batch) as batches,
             array_agg(t.job) filter (where t.job is not null) as jobs,
             array_agg(t.well) filter (where t.job is not null) as wells,
             array_agg(t.batch) filter (where t.stops) as stopping,
             array_agg(t.batch) as of, array_agg(t.completed) as completed, array_agg(t.failed) as failed,
             array_agg(t.cancelled) as cancelled
        into seen from taken t;
      exit when seen.count > 0 or cardinality(busy) = 0;
    end loop;
    exit when seen.count > 0;
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
  more := part.count = most or cardinality(held) > 0;
  update onward.batch b
     set completed = b.completed + n.completed, failed = b.failed + n.failed, cancelled = b.cancelled + n.cancelled
    from (select u.batch, sum(u.completed) as completed, sum(u.failed) as failed, sum(u.cancelled) as cancelled
            from unnest(seen.of, seen.completed, seen.failed, seen.cancelled) u (batch, completed, failed, cancelled)
           group by u.batch) n
   where b.name = n.batch;

  if seen.jobs is not null then
    -- Those that wait are told, at most so many, and none that somebody is writing; of a job that more wait for, there will be
    -- news again. One that is there no more has nothing to be told.
    select count(*) as count, array_agg(o.child) as children, array_agg(o.place) as places, array_agg(o.well) as wells into part
      from (select l.child, l.place, j.well
              from unnest(seen.jobs, seen.wells) j (id, well)
              join onward.link l on l.parent = j.id and not l.done
             limit most) o;
    ours := array(select j.id from onward.job j where j.id = any (part.children) order by j.seq for update skip locked);
    others := array(select j.id from onward.job j where j.id = any (part.children) and j.id <> all (ours));
    with done as (
      update onward.link l set done = true from unnest(part.children, part.places, part.wells) o (child, place, well)
       where l.child = o.child and l.place = o.place and o.child <> all (others)
      returning l.child, o.well)
    select array_agg(d.child) as children, array_agg(d.well) as wells into told from done d;
    insert into onward.news (batch, job, well)
    select distinct l.batch, j.id, j.well
      from unnest(seen.jobs, seen.wells) j (id, well) join onward.link l on l.parent = j.id and not l.done;
    if found and part.count = most and told.children is not null then more := true;
    elsif found then later := true;
    end if;

    if told.children is not null then
      with ended as (
        select c.id, count(*) as ended from unnest(told.children, told.wells) c (id, well)
          join onward.job j on j.id = c.id and j.ready_at is null and j.next_run_at is null
         where c.well or j.on_failure = 'continue' group by c.id),
      given as (
        update onward.job j
           set waits_for = j.waits_for - e.ended, updated_at = greatest(moment, j.updated_at + interval '1 microsecond'),
               ready_at = case when j.waits_for = e.ended then moment end
          from ended e where j.id = e.id
        returning j.queue, j.priority, j.ready_at)
      select array_agg(g.queue) as queues, array_agg(g.priority::integer) as priorities, array_agg(g.ready_at) as since
        into given from given g where g.ready_at is not null;
      if given.queues is not null then
        ready := cardinality(given.queues);
        perform onward.open_lanes(advance.now, given.queues, given.priorities, null);
        perform onward.lower_floors(advance.now, given.queues, given.priorities, given.since);
        perform pg_notify(channel, '*');
      end if;
      select array_agg(distinct j.seq) filter (where j.on_failure = 'skip') as skipped,
             array_agg(distinct j.batch) filter (where j.on_failure = 'stop') as stopped
        into given
        from unnest(told.children, told.wells) c (id, well)
        join onward.job j on j.id = c.id and j.ready_at is null and j.next_run_at is null
       where not c.well;
      if given.skipped is not null then
        perform from onward.cancel_many(advance.now, channel, given.skipped,
                                        'cancelled: a job that it waited for did not complete', true);
        more := true;
      end if;
      update onward.batch b set stopped = true where b.name = any (given.stopped) and b.finished_at is null;
      seen.stopping := seen.stopping || given.stopped;
    end if;
  end if;

  for one in select * from onward.batch b where b.name = any (seen.batches) and b.finished_at is null order by b.name loop
    if one.name = any (seen.stopping) then
      seqs := array(select j.seq from onward.job j
                     where j.batch = one.name and j.batch is not null and j.lease_until is null
                     order by j.seq limit most for update skip locked);
      if cardinality(seqs) > 0 then
        perform from onward.cancel_many(advance.now, channel, seqs,
                                        'cancelled: its batch was stopped before it started', true);
        insert into onward.news (batch, stops) values (one.name, true);
        more := true;
        continue;
      end if;
      if exists (select from onward.job j where j.batch = one.name and j.batch is not null and j.lease_until is null) then
        insert into onward.news (batch, stops) values (one.name, true);
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
      update onward.batch b set finished_at = moment, on_success = null, on_failure = null, on_finished = null
       where b.name = one.name;
    end if;
  end loop;
  if later and not more then more := null; end if;
  return next;
end $$;

-- Let jobs of a batch wait for others. Answers those that are not there.
create function onward.link_jobs(batch text, children uuid[], places integer[], parents uuid[]) returns table (unknown text)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  live uuid[];
begin
  insert into onward.link (child, place, parent, batch)
  select u.child, u.place, u.parent, link_jobs.batch from unnest(children, places, parents) u (child, place, parent);
  -- A parent that is being written at this moment is waited for; if it has ended then, it is found among those that have. Locked
  -- by one statement and changed by the next: the first does not see what it has waited for as it is now.
  live := array(select p.id from onward.job p
                 where p.id = any (parents) and p.batch = link_jobs.batch order by p.seq for update);
  if cardinality(live) > 0 then
    update onward.job j set followed = true, updated_at = j.updated_at + interval '1 microsecond' where j.id = any (live);
  end if;
  insert into onward.news (batch, job, well)
  select link_jobs.batch, h.id, h.state = 'completed' from onward.history h
   where h.id = any (parents) and h.batch = link_jobs.batch and h.id <> all (live);
  return query
  select p::text from (select unnest(parents) except select unnest(live)) u (p)
   where not exists (select from onward.history h where h.id = u.p and h.batch = link_jobs.batch);
end $$;
