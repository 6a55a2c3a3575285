-- What the leader does for all. Each locks the row of the term it acts for: a leader that was stopped past its lease changes
-- nothing, and nobody is elected in the middle of a step. So no step waits for a row that a caller's transaction may hold: while it
-- did, the term could not be renewed, nor anybody be elected. What is held is passed over, and looked at again the next time.

create function onward.is_leader(now_at timestamptz, number bigint, leader_id text) returns boolean
  language plpgsql
as $$
#variable_conflict use_column
begin
  perform from onward.leader l
    where l.number = is_leader.number and l.leader_id = is_leader.leader_id and l.until > now_at for share;
  return found;
end $$;

-- See to it that claims look at these lanes from as far back as each of these moments, as open_lanes() does, and wait for nobody.
-- Where each lane of that name is held by somebody, or is on its way out, another is opened: claims go by the lower low mark. Answers
-- how many were changed or opened.
create function onward.lower_low_marks(now bigint, queues text[], priorities integer[], since timestamptz[]) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = on
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at    timestamptz := coalesce(onward.to_timestamp(lower_low_marks.now), clock_timestamp());
  watermark timestamptz;
  held      record;
  lowered   bigint;
  opened    bigint;
begin
  select array_agg(k.row_id) as row_ids, array_agg(k.queue) as queues, array_agg(k.priority) as priorities, array_agg(k.since) as since
    into held
    from (select l.ctid as row_id, w.queue, w.priority, w.since
            from (select w.queue, w.priority, min(w.since) as since
                    from unnest(lower_low_marks.queues, lower_low_marks.priorities, lower_low_marks.since) w (queue, priority, since)
                   where w.since < now_at - interval '100 milliseconds'
                   group by w.queue, w.priority) w
            join onward.lane l on l.queue = w.queue collate "C" and l.priority = w.priority and l.closing is null
             for update of l skip locked) k;
  watermark := onward.watermark();
  update onward.lane l set low_mark = least(h.since, coalesce(l.low_mark, watermark)), moved_at = now_at
    from unnest(held.row_ids, held.since) h (row_id, since)
   where l.ctid = h.row_id and (l.low_mark is null or l.low_mark > h.since);
  get diagnostics lowered = row_count;
  -- Not a join: it would compare each with each.
  insert into onward.lane (queue, priority, low_mark, moved_at)
  select w.queue, w.priority, least(min(w.since), watermark), now_at
    from (select w.queue, w.priority, w.since, false as is_held
            from unnest(lower_low_marks.queues, lower_low_marks.priorities, lower_low_marks.since) w (queue, priority, since)
           where w.since < now_at - interval '100 milliseconds'
          union all
          select h.queue, h.priority, null, true from unnest(held.queues, held.priorities) h (queue, priority)) w
   group by w.queue, w.priority having not bool_or(w.is_held);
  get diagnostics opened = row_count;
  return lowered + opened;
end $$;

-- Make due jobs ready, as of when they were due; cancel those that were not started in time. Answers, too, in how many seconds
-- the next is due, and whether there are batch events: see advance_batches().
create function onward.promote(now bigint, channel text, number bigint, leader_id text, max_rows integer)
  returns table (promoted bigint, expired bigint, queues text[], next_in float8, has_batch_events boolean)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
  set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz := coalesce(onward.to_timestamp(promote.now), clock_timestamp());
  due    record;
begin
  promoted := 0; expired := 0; queues := '{}'; has_batch_events := false;
  if not onward.is_leader(now_at, promote.number, promote.leader_id) then
    return next;
    return;
  end if;
  expired := onward.expire(now_at, array(
    select j.seq from onward.job j
     where j.start_by is not null and j.start_by <= now_at and j.lease_until is null
     order by j.start_by limit max_rows for update skip locked));
  with ready as (
    update onward.job j
       set ready_at = j.next_run_at, next_run_at = null,
           updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
     where j.ctid = any (array(
             select d.ctid from onward.job d
              where d.next_run_at is not null and d.next_run_at <= now_at and d.ready_at is null
              order by d.next_run_at, d.seq limit max_rows for update skip locked))
    returning j.queue, j.priority, j.ready_at)
  select count(*) as count, array_agg(r.queue) as queues, array_agg(r.priority::integer) as priorities, array_agg(r.ready_at) as since
    into due from ready r;
  promoted := due.count;
  if promoted > 0 then
    perform onward.open_lanes(promote.now, due.queues, due.priorities, null);
    perform onward.lower_low_marks(promote.now, due.queues, due.priorities, due.since);
    queues := array(select distinct q from unnest(due.queues) q);
    perform pg_notify(channel, '*');
  end if;
  select extract(epoch from least(
           (select j.next_run_at from onward.job j where j.next_run_at is not null and j.ready_at is null
             order by j.next_run_at limit 1),
           (select j.start_by from onward.job j where j.start_by > now_at order by j.start_by limit 1)) - now_at)::float8,
         exists (select from onward.batch_event)
    into next_in, has_batch_events;
  return next;
end $$;

-- Shorten what lasts longer from now on than it could if the clock had never gone back: leases of jobs, lease batches, heartbeats of
-- workers, and the wait for a permit. Otherwise the jobs of a worker that died before stay held, and queues with a rate stand still,
-- until the old time comes again.
-- lease  of most jobs: unless the last lease batch ends later than that, none is looked at.
create function onward.shorten_leases(now_at timestamptz, lease interval) returns void
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  update onward.worker w set last_heartbeat = now_at
   where w.ctid = any (array(
           select s.ctid from onward.worker s where s.last_heartbeat > now_at + interval '1 second' for update skip locked));
  update onward.queue q set next_permit_at = now_at + q.spacing + q.reach
   where q.ctid = any (array(
           select s.ctid from onward.queue s
            where s.next_permit_at > now_at + s.spacing + s.reach + interval '1 second' for update skip locked));
  perform from onward.lease_batch g where g.until > now_at + shorten_leases.lease + interval '1 second' limit 1;
  if not found then return; end if;
  update onward.job j set lease_until = now_at + j.lease
   where j.ctid = any (array(
           select h.ctid from onward.job h
            where h.seq = any (array(select distinct unnest(g.seqs) from onward.lease_batch g where g.until > now_at))
              and h.lease_until > now_at + h.lease + interval '1 second'
              for update skip locked));
  update onward.lease_batch b set until = f.first_end
    from (select g.ctid as row_id,
                 (select min(j.lease_until) from onward.job j where j.seq = any (g.seqs) and j.lease_until is not null) as first_end
            from onward.lease_batch g where g.until > now_at for update skip locked) f
   where b.ctid = f.row_id and f.first_end < b.until;
end $$;

-- Give back jobs whose lease has run out, looking at nothing but the lease; forget workers gone silent.
-- since  lease batches from before then have been looked at; null: look at all, and whether the clock has gone back. Answers, too, the
-- moment up to which they have been looked at now, and in how many seconds the next ends.
create function onward.rescue(
  now bigint, channel text, number bigint, leader_id text, lease bigint, max_rows integer, since bigint
) returns table (rescued bigint, queues text[], checked_until bigint, next_in float8)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at      timestamptz := coalesce(onward.to_timestamp(rescue.now), clock_timestamp());
  low         timestamptz := coalesce(onward.to_timestamp(rescue.since), '-infinity');
  lost        bigint[];
  returned    record;
  lease_batch record;
  still       record;
begin
  rescued := 0; queues := '{}';
  if not onward.is_leader(now_at, rescue.number, rescue.leader_id) then
    return next;
    return;
  end if;

  if rescue.since is null then perform onward.shorten_leases(now_at, onward.to_interval(rescue.lease)); end if;
  lost := array(
    select j.seq from onward.job j
     where j.seq = any (array(select distinct unnest(g.seqs) from onward.lease_batch g where g.until > low and g.until <= now_at))
       and j.lease_until <= now_at
       and not exists (select from onward.deferred_heartbeat d
                        where d.seq = j.seq and d.claim_no = j.claim_no and d.until > now_at
                          and d.until <= now_at + j.lease + interval '1 second')  -- else the clock has gone back since
     order by j.seq limit max_rows for update skip locked);
  if cardinality(lost) > 0 then
    with returned as (
      update onward.job j
         set lease_until = null, worker_id = null, has_permit = false,
             -- The first time it runs again like any other job; if that run is lost, too, it is a suspect.
             suspect = j.suspect or (j.started_at is not null and j.was_lost), was_lost = j.was_lost or j.started_at is not null,
             attempts = greatest(j.attempts - case when j.started_at is not null then 1 else 0 end, 0),
             updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
       where j.seq = any (lost)
      returning j.queue, j.priority, j.ready_at)
    select count(*) as count, array_agg(g.queue) as queues, array_agg(g.priority::integer) as priorities, array_agg(g.ready_at) as since
      into returned from returned g;
    rescued := returned.count;
    if rescued > 0 then
      delete from onward.concurrency_permit p where p.seq = any (lost);
      perform onward.open_lanes(rescue.now, returned.queues, returned.priorities, null);
      perform onward.lower_low_marks(rescue.now, returned.queues, returned.priorities, returned.since);
    end if;
    queues := array(select distinct q from unnest(returned.queues) q);
    perform pg_notify(channel, '*');
  end if;

  -- Of the lease batches that were looked at, keep what is held still.
  if cardinality(lost) < max_rows then
    for lease_batch in
      select g.ctid as row_id, g.seqs from onward.lease_batch g where g.until > low and g.until <= now_at for update skip locked
    loop
      select min(j.lease_until) as until, array_agg(j.seq) as seqs into still
        from onward.job j where j.seq = any (lease_batch.seqs) and j.lease_until is not null;
      if still.seqs is null then
        delete from onward.lease_batch g where g.ctid = lease_batch.row_id;
      else
        -- Not in the past: the next calls would not look there. Its jobs have locked rows, or deferred heartbeats.
        update onward.lease_batch g set until = greatest(still.until, now_at), seqs = still.seqs where g.ctid = lease_batch.row_id;
      end if;
    end loop;
    checked_until := onward.to_micros(now_at);
  end if;

  delete from onward.deferred_heartbeat d
   where d.seq = any (array(select o.seq from onward.deferred_heartbeat o where o.until <= now_at for update skip locked));
  next_in := extract(epoch from (select g.until from onward.lease_batch g where g.until > now_at order by g.until limit 1) - now_at);
  delete from onward.worker w
   where w.ctid = any (array(
           select s.ctid from onward.worker s where s.last_heartbeat < now_at - onward.to_interval(rescue.lease)
              for update skip locked));
  return next;
end $$;

-- Prepare for the watermark to move: give a low mark to lanes with jobs that wait since before its new place, and take it from those that
-- have none any longer. Answers where it is to be, and a snapshot to pass in the next time: a time, and the transaction id of this
-- call. docs/explain/postgres-visibility.md has the proof; in short: an enqueuing transaction has its id before it reads the clock, and
-- this one reads the clock before it has its id. So every job that was ready before the snapshot's time belongs to a smaller id, and
-- when all smaller ids have ended, all those jobs are visible: that time is `visible_until`. A transaction that lasts longer than
-- ten seconds is not waited for: see maintain_lanes().
--
-- If the clock has gone back, no snapshot holds any longer, and none is answered: the watermark goes down as far as it can, all low
-- marks with it, and they rise again with later snapshots.
create function onward.prepare_watermark(
  now bigint, number bigint, leader_id text, snapshot_times bigint[], snapshot_xids xid8[],
  out next bigint, out visible_until bigint, out snapshot_at bigint, out snapshot_xid text
)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_material = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at    timestamptz := coalesce(onward.to_timestamp(prepare_watermark.now), clock_timestamp());
  watermark timestamptz := onward.watermark();
  above     timestamptz;
  lanes     record;
begin
  if not onward.is_leader(now_at, prepare_watermark.number, prepare_watermark.leader_id) then return; end if;
  -- So far behind that what is given back a moment after it became ready needs no low mark: see open_lanes().
  snapshot_at := onward.to_micros(now_at - interval '200 milliseconds');
  if greatest(watermark, onward.to_timestamp((select max(t) from unnest(snapshot_times) t))) > onward.to_timestamp(snapshot_at) then
    next := 1; snapshot_at := null;
    -- A low mark of their own, and not none: who gives a job back before the watermark is down would have to go by the watermark.
    perform onward.lower_low_marks(prepare_watermark.now, array_agg(l.queue), array_agg(l.priority), array_agg(timestamptz '-infinity'))
       from onward.lane l where l.low_mark > '-infinity';
    return;
  end if;
  -- Not pg_snapshot_xmax(): that is the latest completed id + 1, which an open transaction may already have.
  snapshot_xid := pg_current_xact_id();
  select max(m.taken_at) into visible_until from unnest(snapshot_times, snapshot_xids) m (taken_at, first_xid)
   where m.first_xid <= pg_snapshot_xmin(pg_current_snapshot());
  above := least(greatest(onward.to_timestamp(visible_until), now_at - interval '10 seconds', watermark), onward.to_timestamp(snapshot_at));
  next := greatest(onward.to_micros(above), 1);
  -- First which lanes, then their locks, and then once more what is there: who gives a job back has locked its lane before, and is
  -- seen now or holds the lock still. A low mark that was given a moment ago stays: the job that it is for may not be seen yet.
  select coalesce(array_agg(f.row_id), '{}') as row_ids, count(*) filter (where f.low_mark is null) as needed into lanes
    from (select k.ctid as row_id, k.low_mark, k.moved_at,
                 (select j.ready_at from onward.job j
                   where j.queue = k.queue and j.priority = k.priority
                     and j.ready_at >= coalesce(k.low_mark, watermark) and j.ready_at < above
                     and j.ready_at is not null and not j.suspect and j.lease_until is null
                   order by j.ready_at, j.seq limit 1) as since
            from onward.lane k offset 0) f
   where (f.low_mark is null) <> (f.since is null) and (f.low_mark is null or f.moved_at < now_at - interval '1 second');
  if cardinality(lanes.row_ids) = 0 then return; end if;
  select coalesce(array_agg(k.ctid), '{}') as row_ids, lanes.needed - count(*) filter (where k.low_mark is null) as missed into lanes
    from (select k.ctid, k.low_mark from onward.lane k where k.ctid = any (lanes.row_ids) for update skip locked) k;
  update onward.lane l set low_mark = f.since, moved_at = now_at
    from (select k.ctid as row_id, k.low_mark,
                 (select j.ready_at from onward.job j
                   where j.queue = k.queue and j.priority = k.priority
                     and j.ready_at >= coalesce(k.low_mark, watermark) and j.ready_at < above
                     and j.ready_at is not null and not j.suspect and j.lease_until is null
                   order by j.ready_at, j.seq limit 1) as since
            from onward.lane k where k.ctid = any (lanes.row_ids) offset 0) f
   where l.ctid = f.row_id and (f.low_mark is null) <> (f.since is null);
  -- A lane that needs a low mark and that somebody else is writing: the watermark stays where it is for now.
  if lanes.missed > 0 then next := coalesce(pg_sequence_last_value('onward.watermark'), 1); end if;
end $$;

-- Move the watermark there, once that is committed: everybody sees it at once.
create function onward.move_watermark(now bigint, number bigint, leader_id text, next bigint) returns void
  language plpgsql
as $$
begin
  if onward.is_leader(coalesce(onward.to_timestamp(move_watermark.now), clock_timestamp()), move_watermark.number, move_watermark.leader_id) then
    perform setval('onward.watermark', next);
  end if;
end $$;

-- Say whether a lane belongs to this shard of `shards`, a power of two; without a shard, each does.
create function onward.is_in_shard(shard integer, shards integer, queue text, priority integer) returns boolean
  language sql immutable parallel safe
  return shard is null or hashtextextended(queue, priority) & (shards - 1) = shard;

-- For maintain_lanes(): there may be many queues, and few of them paused.
create index queue_paused on onward.queue (name) where paused;

-- Repair the lanes; answer `visible_until`, as prepare_watermark() does, by the snapshots that it answered.
--
-- 1. A job below its lane's low mark gets the low mark lowered. It is there because the watermark passed a caller's transaction that was
--    open for too long (such jobs are from `late` on, and are visible when transactions as old as that have ended), because it was
--    put there by hand, or because the argument for the watermark is wrong. No lane relies on that argument: each call scans the last
--    minute below every low mark, and the lanes of `deep_shard` of `deep_shards` from their beginning; without a shard, all lanes. The
--    leader asks for all of them while that takes less than a fifth of a second.
-- 2. A job without a lane gets one: it was put there by hand, or by a transaction that took the lane for open too long ago.
-- 3. Of lane shard `shard` of 64, a lane without a job, and without a recent one, is removed in three calls: one marks it (`closing`),
--    the next, which sees the mark committed, seals it with its own transaction id, and one removes it when all smaller ids have
--    ended. A transaction that saw the lane unmarked has an id that is smaller than the seal. Whatever adds a job to a marked lane
--    opens another.
create function onward.maintain_lanes(
  now bigint, channel text, number bigint, leader_id text, late bigint, snapshot_times bigint[], snapshot_xids xid8[], shard integer,
  deep_shard integer, deep_shards integer
) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_material = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at        timestamptz := coalesce(onward.to_timestamp(maintain_lanes.now), clock_timestamp());
  watermark     timestamptz := onward.watermark();
  oldest        xid8 := pg_snapshot_xmin(pg_current_snapshot());
  visible_until bigint;
  is_late       boolean;
  low           record;
  lowered       bigint;
  opened        bigint;
  leaving       tid[];
begin
  if not onward.is_leader(now_at, maintain_lanes.number, maintain_lanes.leader_id) then return null; end if;
  select max(m.taken_at) into visible_until from unnest(snapshot_times, snapshot_xids) m (taken_at, first_xid) where m.first_xid <= oldest;
  is_late := coalesce(visible_until > late, false);

  select array_agg(l.queue) as queues, array_agg(l.priority) as priorities, array_agg(j.ready_at) as since into low
    from (select l.queue, l.priority, coalesce(l.low_mark, watermark) as low_mark,
                 case when onward.is_in_shard(deep_shard, deep_shards, l.queue, l.priority) then '-infinity'
                      else least(coalesce(l.low_mark, watermark) - interval '1 minute', case when is_late then onward.to_timestamp(late) end)
                 end as first
            from onward.lane l offset 0) l
    cross join lateral (select j.ready_at from onward.job j
                         where j.queue = l.queue and j.priority = l.priority and j.ready_at < l.low_mark and j.ready_at >= l.first
                           and j.ready_at is not null and not j.suspect and j.lease_until is null
                         order by j.ready_at limit 1) j;
  lowered := onward.lower_low_marks(maintain_lanes.now, low.queues, low.priorities, low.since);

  -- One probe for the gap behind each lane and each queue: what is known is jumped over, however much of it there is. So are queues
  -- that are paused: their jobs have no lane, and would hide those of the queue behind. From a job that was found, on through its gap.
  with recursive lanes as (select distinct l.queue, l.priority from onward.lane l),
  queues as (
    select l.queue from lanes l
    union select q.name from onward.queue q where q.paused
    union select '' collate "C"),
  gaps as (select q.queue, lead(q.queue, 1, '~') over (order by q.queue) as next from queues q),  -- no name is above that
  steps as (
    select l.queue, l.priority, lead(l.priority, 1, -1) over (partition by l.queue order by l.priority desc) as next from lanes l
    union all
    select l.queue, 2147483647, max(l.priority) from lanes l group by l.queue),
  lost (queue, priority, next, next_priority) as (
    (select j.queue, j.priority, g.next, -1 from gaps g
       cross join lateral (select j.queue, j.priority from onward.job j
                            where j.queue > g.queue and j.queue < g.next and j.ready_at is not null and not j.suspect
                            order by j.queue, j.priority desc limit 1) j
     union all
     select s.queue, j.priority, '' collate "C", s.next from steps s
       cross join lateral (select j.priority from onward.job j
                            where j.queue = s.queue and j.priority < s.priority and j.priority > s.next
                              and j.ready_at is not null and not j.suspect
                            order by j.priority desc limit 1) j)
    union all
    select n.queue, n.priority, l.next, l.next_priority from lost l
      cross join lateral (
        select * from (
          (select 1 as no, j.queue, j.priority from onward.job j
            where j.queue = l.queue and j.priority < l.priority and j.priority > l.next_priority
              and j.ready_at is not null and not j.suspect
            order by j.priority desc limit 1)
          union all
          (select 2, j.queue, j.priority from onward.job j
            where j.queue > l.queue and j.queue < l.next and j.ready_at is not null and not j.suspect
            order by j.queue, j.priority desc limit 1)) n
         order by n.no limit 1) n)
  insert into onward.lane (queue, priority, low_mark)
  select l.queue, l.priority, timestamptz '-infinity' from lost l
   where not exists (select from onward.queue q where q.name = l.queue and q.paused)
   limit 10000;
  get diagnostics opened = row_count;

  leaving := array(
    select l.ctid from onward.lane l
     where l.is_sealed and l.closing <= oldest and onward.is_in_shard(shard, 64, l.queue, l.priority) for update skip locked);
  insert into onward.queue (name, created_at)
  select distinct l.queue, now_at from onward.lane l where l.ctid = any (leaving)
  on conflict do nothing;
  -- Not `not exists`: of that the planner may make a join, which reads all the jobs there are.
  delete from onward.lane l
   where l.ctid = any (leaving)
     and (select true from onward.job j
           where j.queue = l.queue and j.priority = l.priority and j.ready_at >= coalesce(l.low_mark, watermark)
             and j.ready_at is not null and not j.suspect limit 1) is null;
  update onward.lane l set closing = null, is_sealed = false where l.ctid = any (leaving);
  update onward.lane k set closing = pg_current_xact_id(), is_sealed = true
   where k.ctid = any (array(
     select l.ctid from onward.lane l
      where l.closing is not null and not l.is_sealed and onward.is_in_shard(shard, 64, l.queue, l.priority) for update skip locked));
  update onward.lane k set closing = pg_current_xact_id()
   where k.ctid = any (array(
     select l.ctid from onward.lane l
      where l.closing is null and onward.is_in_shard(shard, 64, l.queue, l.priority)
        and (select true from onward.job j
              where j.queue = l.queue and j.priority = l.priority and j.ready_at >= coalesce(l.low_mark, watermark)
                and j.ready_at is not null and not j.suspect limit 1) is null
        -- A lane that is used now and then should not come and go all the time.
        and not exists (select from (select h.priority from onward.history_done h
                                      where h.queue = l.queue and h.status = 'completed'
                                        and h.completed_at > now_at - interval '1 minute'
                                      order by h.completed_at desc limit 100) h
                         where h.priority = l.priority)
        for update skip locked));
  if lowered + opened > 0 then perform pg_notify(channel, '*'); end if;
  return visible_until;
end $$;

-- The longest times of all: for which some queue keeps what has completed or was cancelled (`kept`; null: for ever), for which one
-- archives it (`archived`), and for which one that does not keep it for ever keeps it (`longest`).
create function onward.max_retention(out kept interval, out archived interval, out longest interval)
  language sql stable
begin atomic
  select case when bool_or(q.keep_completed is null or q.keep_cancelled is null) then null
              else greatest(interval '7 days', max(q.keep_completed), max(q.keep_cancelled)) end,
         greatest(interval '30 days', max(q.keep_archived)),
         greatest(interval '7 days', max(q.keep_completed), max(q.keep_cancelled))
    from onward.queue q;
end;

-- How long each queue keeps its ended jobs. Those that were told nothing do so for a week, and archive them for thirty days. Queues
-- that keep and archive theirs for the longest time of all let them go by the day.
create view onward.retention as
with known as (
  select q.name, q.keep_completed, q.keep_failed, q.keep_cancelled, q.keep_archived from onward.queue q
  union all
  select distinct l.queue, interval '7 days', null::interval, interval '7 days', interval '30 days' from onward.lane l
   where not exists (select from onward.queue q where q.name = l.queue))
select k.*, coalesce(k.keep_completed = d.kept and k.keep_cancelled = d.kept and k.keep_archived = d.archived, false)
              as uses_partitions
  from known k cross join onward.max_retention() d;

-- Archive ended jobs that their queue no longer keeps, one by one: those that do not go by the day, or whose day was never made.
-- Answers how many.
create function onward.prune(now bigint, number bigint, leader_id text, max_rows integer) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz := coalesce(onward.to_timestamp(prune.now), clock_timestamp());
  gone   bigint[] := '{}';
  over   bigint[];
  pruned bigint;
  newest timestamptz;
begin
  if not onward.is_leader(now_at, prune.number, prune.leader_id) then return 0; end if;
  select array(
    select h.seq from onward.retention k
      cross join lateral (values ('completed', k.keep_completed, k.uses_partitions), ('cancelled', k.keep_cancelled, k.uses_partitions),
                                 ('failed', k.keep_failed, false), ('dead_letter', k.keep_failed, false)) r (status, keep, by_day)
      -- Of what goes by the day, only the part for days that were never made is looked at: the others wait, and may be many.
      cross join lateral (
        select h.seq
          from (select h.seq from onward.history h
                 where not r.by_day and h.queue = k.name and h.status = r.status and h.completed_at <= now_at - r.keep
                 limit max_rows for update skip locked) h
        union all
        select h.seq
          from (select h.seq from onward.history_day_other h
                 where r.by_day and h.queue = k.name and h.status = r.status and h.completed_at <= now_at - r.keep
                 limit max_rows for update skip locked) h) h
     limit max_rows) into gone;
  if cardinality(gone) < max_rows then
    over := array(
      select h.seq from onward.queue q
        cross join lateral (
          (select h.seq from onward.history h
            where q.keep_completed_count is not null and h.queue = q.name and h.status = 'completed'
            order by h.completed_at desc, h.seq desc limit max_rows offset q.keep_completed_count)
          union all
          (select h.seq from onward.history h
            where q.keep_failed_count is not null and h.queue = q.name and h.status in ('failed', 'dead_letter')
            order by h.completed_at desc, h.seq desc limit max_rows offset q.keep_failed_count)) h
       where q.keep_completed_count is not null or q.keep_failed_count is not null
       limit max_rows - cardinality(gone));
    -- Only these: to lock them on the way would lock those that are kept, and not count what is held.
    gone := gone || array(select h.seq from onward.history h where h.seq = any (over) for update skip locked);
  end if;
  if cardinality(gone) = 0 then return 0; end if;
  with ended as (delete from onward.history h where h.seq = any (gone) returning h.*),
  kept as (
    insert into onward.archive_rows
    select e.*, case when q.name is null then now_at + interval '30 days'
                     else coalesce(now_at + q.keep_archived, timestamptz 'infinity') end
      from ended e left join onward.queue q on q.name = e.queue
     where q.keep_archived is distinct from interval '0'),
  keys as (delete from onward.key k using ended e where k.digest = e.key_digest and k.id = e.id),
  logs as (delete from onward.log l using ended e where l.seq = e.seq)
  select count(*), max(e.completed_at) into pruned, newest from ended e;
  -- How these jobs ended can no longer be told to who was not listening.
  update onward.event_log l set pruned_at = greatest(l.pruned_at, newest) where l.pruned_at < newest;
  return pruned;
end $$;

-- Remove archived jobs whose time is over, of those that came one by one; answer how many.
create function onward.prune_archive(now bigint, number bigint, leader_id text, max_rows integer) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
  now_at timestamptz := coalesce(onward.to_timestamp(prune_archive.now), clock_timestamp());
  gone   bigint;
begin
  if not onward.is_leader(now_at, prune_archive.number, prune_archive.leader_id) then return 0; end if;
  with over as (
    delete from onward.archive_rows r
     where r.ctid = any (array(
             select o.ctid from onward.archive_rows o where o.until <= now_at order by o.until limit max_rows for update skip locked))
    returning 1)
  select count(*) into gone from over;
  return gone;
end $$;

-- Remove archived jobs, because somebody said so; answers for each what delete_many does.
create function onward.purge_archived(picked bigint[])
  returns table (seq bigint, queue text, id text, status text)
  language plpgsql
as $$
#variable_conflict use_column
begin
  return query
  with days as (delete from onward.archive_days a where a.seq = any (picked) returning a.seq, a.queue, a.id, a.status),
  single as (delete from onward.archive_rows a where a.seq = any (picked) returning a.seq, a.queue, a.id, a.status)
  select g.seq, g.queue, g.id::text, g.status from (select * from days union all select * from single) g order by g.seq;
end $$;
