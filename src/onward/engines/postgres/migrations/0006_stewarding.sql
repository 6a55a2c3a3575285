-- What the leader does for all. Each locks the row of the term it acts for: a leader that was stopped past its lease changes
-- nothing, and nobody is elected in the middle of a step. So no step waits for a row that a caller's transaction may hold: while it
-- did, the term could not be renewed, nor anybody be elected. What is held is passed over, and looked at again the next time.

create function onward.is_leader(moment timestamptz, number bigint, leader_id text) returns boolean
  language plpgsql
as $$
#variable_conflict use_column
begin
  perform from onward.leader l
    where l.number = is_leader.number and l.leader_id = is_leader.leader_id and l.until > moment for share;
  return found;
end $$;

-- See to it that claims look at these lanes from as far back as each of these moments, as open_lanes() does, and wait for nobody.
-- Where each lane of that name is held by somebody, or is on its way out, another is opened: claims go by the lower floor. Answers
-- how many were changed or opened.
create function onward.lower_floors(now bigint, queues text[], priorities integer[], since timestamptz[]) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = on
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  moment  timestamptz := coalesce(onward.moment(lower_floors.now), clock_timestamp());
  ground  timestamptz;
  held    record;
  lowered bigint;
  opened  bigint;
begin
  select array_agg(k.place) as places, array_agg(k.queue) as queues, array_agg(k.priority) as priorities, array_agg(k.since) as since
    into held
    from (select l.ctid as place, w.queue, w.priority, w.since
            from (select w.queue, w.priority, min(w.since) as since
                    from unnest(lower_floors.queues, lower_floors.priorities, lower_floors.since) w (queue, priority, since)
                   where w.since < moment - interval '100 milliseconds'
                   group by w.queue, w.priority) w
            join onward.lane l on l.queue = w.queue collate "C" and l.priority = w.priority and l.closing is null
             for update of l skip locked) k;
  ground := onward.ground();
  update onward.lane l set floor = least(h.since, coalesce(l.floor, ground)), moved_at = moment
    from unnest(held.places, held.since) h (place, since)
   where l.ctid = h.place and (l.floor is null or l.floor > h.since);
  get diagnostics lowered = row_count;
  -- Not a join: it would compare each with each.
  insert into onward.lane (queue, priority, floor, moved_at)
  select w.queue, w.priority, least(min(w.since), ground), moment
    from (select w.queue, w.priority, w.since, false as is_held
            from unnest(lower_floors.queues, lower_floors.priorities, lower_floors.since) w (queue, priority, since)
           where w.since < moment - interval '100 milliseconds'
          union all
          select h.queue, h.priority, null, true from unnest(held.queues, held.priorities) h (queue, priority)) w
   group by w.queue, w.priority having not bool_or(w.is_held);
  get diagnostics opened = row_count;
  return lowered + opened;
end $$;

-- Make due jobs ready, as of when they were due; cancel those that were not started in time. Answers, too, in how many seconds
-- the next is due, and whether there is news of batches: see advance().
create function onward.promote(now bigint, channel text, number bigint, leader_id text, most integer)
  returns table (promoted bigint, expired bigint, queues text[], next_in float8, has_news boolean)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
  set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  moment timestamptz := coalesce(onward.moment(promote.now), clock_timestamp());
  due    record;
begin
  promoted := 0; expired := 0; queues := '{}'; has_news := false;
  if not onward.is_leader(moment, promote.number, promote.leader_id) then
    return next;
    return;
  end if;
  expired := onward.expire(moment, array(
    select j.seq from onward.job j
     where j.start_by is not null and j.start_by <= moment and j.lease_until is null
     order by j.start_by limit most for update skip locked));
  with ready as (
    update onward.job j
       set ready_at = j.next_run_at, next_run_at = null,
           updated_at = greatest(moment, j.updated_at + interval '1 microsecond')
     where j.ctid = any (array(
             select d.ctid from onward.job d
              where d.next_run_at is not null and d.next_run_at <= moment and d.ready_at is null
              order by d.next_run_at, d.seq limit most for update skip locked))
    returning j.queue, j.priority, j.ready_at)
  select count(*) as count, array_agg(r.queue) as queues, array_agg(r.priority::integer) as priorities, array_agg(r.ready_at) as since
    into due from ready r;
  promoted := due.count;
  if promoted > 0 then
    perform onward.open_lanes(promote.now, due.queues, due.priorities, null);
    perform onward.lower_floors(promote.now, due.queues, due.priorities, due.since);
    queues := array(select distinct q from unnest(due.queues) q);
    perform pg_notify(channel, '*');
  end if;
  select extract(epoch from least(
           (select j.next_run_at from onward.job j where j.next_run_at is not null and j.ready_at is null
             order by j.next_run_at limit 1),
           (select j.start_by from onward.job j where j.start_by > moment order by j.start_by limit 1)) - moment)::float8,
         exists (select from onward.news)
    into next_in, has_news;
  return next;
end $$;

-- Give back jobs whose lease has run out, looking at nothing but the lease; forget workers gone silent.
-- since  grips from before then have been looked at. Answers, too, the moment up to which they have been now, and in how many
-- seconds the next ends.
create function onward.rescue(
  now bigint, channel text, number bigint, leader_id text, worker_timeout bigint, max_crashes integer, most integer, since bigint
) returns table (rescued bigint, buried bigint, queues text[], looked bigint, next_in float8)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  moment timestamptz := coalesce(onward.moment(rescue.now), clock_timestamp());
  low    timestamptz := coalesce(onward.moment(rescue.since), '-infinity');
  lost   bigint[];
  given  record;
  grip   record;
  still  record;
begin
  rescued := 0; buried := 0; queues := '{}';
  if not onward.is_leader(moment, rescue.number, rescue.leader_id) then
    return next;
    return;
  end if;

  lost := array(
    select j.seq from onward.job j
     where j.seq = any (array(select distinct unnest(g.seqs) from onward.grip g where g.until > low and g.until <= moment))
       and j.lease_until <= moment
     order by j.seq limit most for update skip locked);
  if cardinality(lost) > 0 then
    with ended as (
      delete from onward.job j
       where j.seq = any (lost) and j.started_at is not null and j.alone and j.crashes + 1 >= max_crashes
      returning j.*, format('its process died %s times while it was the only job running there', j.crashes + 1) as why),
    kept as (
      insert into onward.history (seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at,
                                  started_at, id, max_attempts, priority, attempts, crashes, progress, queue, state, type,
                                  payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff,
                                  last_error, errors, progress_message, batch)
      select seq, claim_no, created_at, greatest(moment, updated_at + interval '1 microsecond'), moment, next_run_at, start_by,
             claimed_at, started_at, id, max_attempts, priority, greatest(attempts - 1, 0), crashes + 1, progress, queue, 'dead_letter', type,
             payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key, dedupe_digest, backoff,
             'WorkerLost: ' || why,
             onward.with_error(errors, jsonb_build_object('kind', 'WorkerLost', 'message', why)::text, moment, attempts, worker_id),
             progress_message, batch
        from ended),
    noted as (
      insert into onward.news (batch, job, well, failed)
      select batch, case when followed then id end, false, count(*) from ended where batch is not null group by 1, 2)
    select count(*), array_agg(distinct e.queue) into buried, queues from ended e;
    with given as (
      update onward.job j
         set lease_until = null, worker_id = null, counted = false, alone = false,
             suspect = j.suspect or j.started_at is not null,
             attempts = greatest(j.attempts - case when j.started_at is not null then 1 else 0 end, 0),
             crashes = j.crashes + case when j.started_at is not null and j.alone then 1 else 0 end,
             updated_at = greatest(moment, j.updated_at + interval '1 microsecond')
       where j.seq = any (lost)
      returning j.queue, j.priority, j.ready_at)
    select count(*) as count, array_agg(g.queue) as queues, array_agg(g.priority::integer) as priorities, array_agg(g.ready_at) as since
      into given from given g;
    rescued := given.count;
    if rescued > 0 then
      delete from onward.place p where p.seq = any (lost);
      perform onward.open_lanes(rescue.now, given.queues, given.priorities, null);
      perform onward.lower_floors(rescue.now, given.queues, given.priorities, given.since);
    end if;
    queues := array(select distinct q from unnest(coalesce(queues, '{}') || given.queues) q);
    perform pg_notify(channel, '*');
  end if;

  -- Of the grips that were looked at, keep what is held still.
  if cardinality(lost) < most then
    for grip in
      select g.ctid as place, g.seqs from onward.grip g where g.until > low and g.until <= moment for update skip locked
    loop
      select min(j.lease_until) as until, array_agg(j.seq) as seqs into still
        from onward.job j where j.seq = any (grip.seqs) and j.lease_until is not null;
      if still.seqs is null then
        delete from onward.grip g where g.ctid = grip.place;
      else
        update onward.grip g set until = still.until, seqs = still.seqs where g.ctid = grip.place;
      end if;
    end loop;
    looked := onward.micros(moment);
  end if;

  next_in := extract(epoch from (select g.until from onward.grip g where g.until > moment order by g.until limit 1) - moment);
  delete from onward.worker w
   where w.ctid = any (array(
           select s.ctid from onward.worker s where s.last_heartbeat < moment - onward.span(rescue.worker_timeout)
              for update skip locked));
  return next;
end $$;

-- Prepare for the ground to move: give a floor to lanes with jobs that wait since before its new place, and take it from those that
-- have none any longer. Answers where it is to be, and what to say the next time: a moment, and the first transaction after it.
-- Whoever adds a job is known by its number before, so when all that are older than that have ended, every job that was ready by
-- that moment can be seen: that is `sure`. Only those of a transaction that lasts for ten seconds and more are not waited for:
-- see tend(). If the clock has gone back, nothing that was said of moments holds any longer, and no moment is answered: the ground
-- goes down as far as it can, all floors with it, and they come up again by what is seen from then on.
create function onward.sweep(
  now bigint, number bigint, leader_id text, moments bigint[], firsts xid8[],
  out next bigint, out sure bigint, out moment bigint, out first text
)
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_material = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  today  timestamptz := coalesce(onward.moment(sweep.now), clock_timestamp());
  ground timestamptz := onward.ground();
  above  timestamptz;
  lanes  record;
begin
  if not onward.is_leader(today, sweep.number, sweep.leader_id) then return; end if;
  -- So far behind that what is given back a moment after it became ready needs no floor: see open_lanes().
  moment := onward.micros(today - interval '200 milliseconds');
  if ground > onward.moment(moment) then
    next := 1; moment := null;
    -- A floor of their own, and not none: who gives a job back before the ground is down would have to go by the ground.
    perform onward.lower_floors(sweep.now, array_agg(l.queue), array_agg(l.priority), array_agg(timestamptz '-infinity'))
       from onward.lane l where l.floor > '-infinity';
    return;
  end if;
  first := pg_snapshot_xmax(pg_current_snapshot());
  select max(m.moment) into sure from unnest(moments, firsts) m (moment, first)
   where m.first <= pg_snapshot_xmin(pg_current_snapshot());
  above := least(greatest(onward.moment(sure), today - interval '10 seconds', ground), onward.moment(moment));
  next := greatest(onward.micros(above), 1);
  -- First which lanes, then their locks, and then once more what is there: who gives a job back has locked its lane before, and is
  -- seen now or holds the lock still. A floor that was given a moment ago stays: the job that it is for may not be seen yet.
  select coalesce(array_agg(f.place), '{}') as places, count(*) filter (where f.floor is null) as given into lanes
    from (select k.ctid as place, k.floor, k.moved_at,
                 (select j.ready_at from onward.job j
                   where j.queue = k.queue and j.priority = k.priority
                     and j.ready_at >= coalesce(k.floor, ground) and j.ready_at < above
                     and j.ready_at is not null and not j.suspect and j.lease_until is null
                   order by j.ready_at, j.seq limit 1) as since
            from onward.lane k offset 0) f
   where (f.floor is null) <> (f.since is null) and (f.floor is null or f.moved_at < today - interval '1 second');
  if cardinality(lanes.places) = 0 then return; end if;
  select coalesce(array_agg(k.ctid), '{}') as places, lanes.given - count(*) filter (where k.floor is null) as missed into lanes
    from (select k.ctid, k.floor from onward.lane k where k.ctid = any (lanes.places) for update skip locked) k;
  update onward.lane l set floor = f.since, moved_at = today
    from (select k.ctid as place, k.floor,
                 (select j.ready_at from onward.job j
                   where j.queue = k.queue and j.priority = k.priority
                     and j.ready_at >= coalesce(k.floor, ground) and j.ready_at < above
                     and j.ready_at is not null and not j.suspect and j.lease_until is null
                   order by j.ready_at, j.seq limit 1) as since
            from onward.lane k where k.ctid = any (lanes.places) offset 0) f
   where l.ctid = f.place and (f.floor is null) <> (f.since is null);
  -- A lane that needs a floor and that somebody else is writing: the ground stays where it is for now.
  if lanes.missed > 0 then next := coalesce(pg_sequence_last_value('onward.ground'), 1); end if;
end $$;

-- Move the ground there, once that is committed: everybody sees it at once.
create function onward.move_ground(now bigint, number bigint, leader_id text, next bigint) returns void
  language plpgsql
as $$
begin
  if onward.is_leader(coalesce(onward.moment(move_ground.now), clock_timestamp()), move_ground.number, move_ground.leader_id) then
    perform setval('onward.ground', next);
  end if;
end $$;

-- Say whether a lane belongs to this part of all of them, one in 64; without a part, each does.
create function onward.is_in(part integer, queue text, priority integer) returns boolean
  language sql immutable parallel safe
  return part is null or hashtextextended(queue, priority) & 63 = part;

-- For tend(): there may be many queues, and few of them paused.
create index queue_paused on onward.queue (name) where paused;

-- Keep the lanes in order; answer before which moment no more jobs will come to light, by what sweep() said of some moments.
--
-- 1. A job below its lane's floor. Either a caller's transaction took so long that the ground went ahead of it: there may be such
--    jobs from `late` on, and they are looked for when transactions as old as that have ended. Or somebody put it there by hand:
--    for that, one lane in 64 is looked at from its beginning, the next `part` each time; without one, all are. The floor comes
--    down.
-- 2. A job without a lane: put there by hand. It gets one.
-- 3. Of the same part, a lane with no job, and none of late, is marked, and taken away once every transaction that may have seen
--    it unmarked has ended. Whoever adds a job to a marked lane opens another, so nobody has to wait for anybody.
create function onward.tend(
  now bigint, channel text, number bigint, leader_id text, late bigint, moments bigint[], firsts xid8[], part integer
) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_material = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  moment timestamptz := coalesce(onward.moment(tend.now), clock_timestamp());
  ground timestamptz := onward.ground();
  oldest xid8 := pg_snapshot_xmin(pg_current_snapshot());
  sure    bigint;
  is_late boolean;
  low     record;
  lowered bigint;
  opened  bigint;
  leaving tid[];
begin
  if not onward.is_leader(moment, tend.number, tend.leader_id) then return null; end if;
  select max(m.moment) into sure from unnest(moments, firsts) m (moment, first) where m.first <= oldest;
  is_late := coalesce(sure > late, false);

  select array_agg(l.queue) as queues, array_agg(l.priority) as priorities, array_agg(j.ready_at) as since into low
    from (select l.queue, l.priority, coalesce(l.floor, ground) as floor,
                 onward.is_in(part, l.queue, l.priority) as is_deep
            from onward.lane l where is_late or onward.is_in(part, l.queue, l.priority) offset 0) l
    cross join lateral (select j.ready_at from onward.job j
                         where j.queue = l.queue and j.priority = l.priority and j.ready_at < l.floor
                           and j.ready_at >= case when l.is_deep then '-infinity' else onward.moment(late) end
                           and j.ready_at is not null and not j.suspect and j.lease_until is null
                         order by j.ready_at limit 1) j;
  lowered := onward.lower_floors(tend.now, low.queues, low.priorities, low.since);

  -- One probe for the gap behind each lane and each queue: what is known is jumped over, however much of it there is. So are queues
  -- that are paused: their jobs have no lane, and would hide those of the queue behind.
  with lanes as (select distinct l.queue, l.priority from onward.lane l),
  queues as (
    select l.queue from lanes l
    union select q.name from onward.queue q where q.paused
    union select '' collate "C"),
  gaps as (select q.queue, lead(q.queue, 1, '~') over (order by q.queue) as next from queues q),  -- no name is above that
  steps as (
    select l.queue, l.priority, lead(l.priority, 1, -1) over (partition by l.queue order by l.priority desc) as next from lanes l
    union all
    select l.queue, 2147483647, max(l.priority) from lanes l group by l.queue),
  lost as (
    select j.queue, j.priority from gaps g
      cross join lateral (select j.queue, j.priority from onward.job j
                           where j.queue > g.queue and j.queue < g.next and j.ready_at is not null and not j.suspect
                           order by j.queue limit 1) j
    union all
    select s.queue, j.priority from steps s
      cross join lateral (select j.priority from onward.job j
                           where j.queue = s.queue and j.priority < s.priority and j.priority > s.next
                             and j.ready_at is not null and not j.suspect
                           order by j.priority desc limit 1) j)
  insert into onward.lane (queue, priority, floor)
  select distinct l.queue, l.priority, timestamptz '-infinity' from lost l
   where not exists (select from onward.queue q where q.name = l.queue and q.paused);
  get diagnostics opened = row_count;

  leaving := array(
    select l.ctid from onward.lane l where l.closing < oldest and onward.is_in(part, l.queue, l.priority) for update skip locked);
  insert into onward.queue (name, created_at)
  select distinct l.queue, moment from onward.lane l where l.ctid = any (leaving)
  on conflict do nothing;
  -- Not `not exists`: of that the planner may make a join, which reads all the jobs there are.
  delete from onward.lane l
   where l.ctid = any (leaving)
     and (select true from onward.job j
           where j.queue = l.queue and j.priority = l.priority and j.ready_at >= coalesce(l.floor, ground)
             and j.ready_at is not null and not j.suspect limit 1) is null;
  update onward.lane l set closing = null where l.ctid = any (leaving);
  update onward.lane k set closing = pg_current_xact_id()
   where k.ctid = any (array(
     select l.ctid from onward.lane l
      where l.closing is null and onward.is_in(part, l.queue, l.priority)
        and (select true from onward.job j
              where j.queue = l.queue and j.priority = l.priority and j.ready_at >= coalesce(l.floor, ground)
                and j.ready_at is not null and not j.suspect limit 1) is null
        -- A lane that is used now and then should not come and go all the time.
        and not exists (select from (select h.priority from onward.history_done h
                                      where h.queue = l.queue and h.state = 'completed'
                                        and h.completed_at > moment - interval '1 minute'
                                      order by h.completed_at desc limit 100) h
                         where h.priority = l.priority)
        for update skip locked));
  if lowered + opened > 0 then perform pg_notify(channel, '*'); end if;
  return sure;
end $$;

-- The longest times of all: for which some queue keeps what has completed or was cancelled (`kept`; null: for ever), for which one
-- archives it (`archived`), and for which one that does not keep it for ever keeps it (`longest`).
create function onward.longest(out kept interval, out archived interval, out longest interval)
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
              as goes_by_day
  from known k cross join onward.longest() d;

-- Archive ended jobs that their queue no longer keeps, one by one: those that do not go by the day, or whose day was never made.
-- Answers how many.
create function onward.prune(now bigint, number bigint, leader_id text, most integer) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  moment timestamptz := coalesce(onward.moment(prune.now), clock_timestamp());
  gone   bigint[] := '{}';
  over   bigint[];
  pruned bigint;
  newest timestamptz;
begin
  if not onward.is_leader(moment, prune.number, prune.leader_id) then return 0; end if;
  select array(
    select h.seq from onward.retention k
      cross join lateral (values ('completed', k.keep_completed, k.goes_by_day), ('cancelled', k.keep_cancelled, k.goes_by_day),
                                 ('failed', k.keep_failed, false), ('dead_letter', k.keep_failed, false)) r (state, keep, by_day)
      -- Of what goes by the day, only the part for days that were never made is looked at: the others wait, and may be many.
      cross join lateral (
        select h.seq
          from (select h.seq from onward.history h
                 where not r.by_day and h.queue = k.name and h.state = r.state and h.completed_at <= moment - r.keep
                 limit most for update skip locked) h
        union all
        select h.seq
          from (select h.seq from onward.history_day_other h
                 where r.by_day and h.queue = k.name and h.state = r.state and h.completed_at <= moment - r.keep
                 limit most for update skip locked) h) h
     limit most) into gone;
  if cardinality(gone) < most then
    over := array(
      select h.seq from onward.queue q
        cross join lateral (
          (select h.seq from onward.history h
            where q.keep_completed_count is not null and h.queue = q.name and h.state = 'completed'
            order by h.completed_at desc, h.seq desc limit most offset q.keep_completed_count)
          union all
          (select h.seq from onward.history h
            where q.keep_failed_count is not null and h.queue = q.name and h.state in ('failed', 'dead_letter')
            order by h.completed_at desc, h.seq desc limit most offset q.keep_failed_count)) h
       where q.keep_completed_count is not null or q.keep_failed_count is not null
       limit most - cardinality(gone));
    -- Only these: to lock them on the way would lock those that are kept, and not count what is held.
    gone := gone || array(select h.seq from onward.history h where h.seq = any (over) for update skip locked);
  end if;
  if cardinality(gone) = 0 then return 0; end if;
  with ended as (delete from onward.history h where h.seq = any (gone) returning h.*),
  kept as (
    insert into onward.archive_rows
    select e.*, case when q.name is null then moment + interval '30 days'
                     else coalesce(moment + q.keep_archived, timestamptz 'infinity') end
      from ended e left join onward.queue q on q.name = e.queue
     where q.keep_archived is distinct from interval '0'),
  keys as (delete from onward.key k using ended e where k.digest = e.key_digest),
  logs as (delete from onward.log l using ended e where l.seq = e.seq)
  select count(*), max(e.completed_at) into pruned, newest from ended e;
  -- How these jobs ended can no longer be told to who was not listening.
  update onward.event_log l set pruned_at = greatest(l.pruned_at, newest) where l.pruned_at < newest;
  return pruned;
end $$;

-- Remove archived jobs whose time is over, of those that came one by one; answer how many.
create function onward.prune_archive(now bigint, number bigint, leader_id text, most integer) returns bigint
  language plpgsql
  set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
  moment timestamptz := coalesce(onward.moment(prune_archive.now), clock_timestamp());
  gone   bigint;
begin
  if not onward.is_leader(moment, prune_archive.number, prune_archive.leader_id) then return 0; end if;
  with over as (
    delete from onward.archive_rows r
     where r.ctid = any (array(
             select o.ctid from onward.archive_rows o where o.until <= moment order by o.until limit most for update skip locked))
    returning 1)
  select count(*) into gone from over;
  return gone;
end $$;

-- Remove archived jobs, because somebody said so; answers for each what delete_many does.
create function onward.purge_archived(picked bigint[])
  returns table (seq bigint, queue text, id text, state text)
  language plpgsql
as $$
#variable_conflict use_column
begin
  return query
  with days as (delete from onward.archive_days a where a.seq = any (picked) returning a.seq, a.queue, a.id, a.state),
  single as (delete from onward.archive_rows a where a.seq = any (picked) returning a.seq, a.queue, a.id, a.state)
  select g.seq, g.queue, g.id::text, g.state from (select * from days union all select * from single) g order by g.seq;
end $$;
