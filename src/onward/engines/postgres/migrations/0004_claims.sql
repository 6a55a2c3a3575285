-- Taking jobs: fair across queues, within their limits.
--
-- A claim goes round the lanes by the names of their queues, from where it left off, and takes from each queue as many as its
-- weight says; then those with more to give fill what room is left. Lanes with nothing to give are passed over in one scan.
-- Plans are pinned by the functions themselves: the statistics of a table that fills and empties all day are always wrong,
-- and nothing may depend on the state of a session.

-- A lane that has something to give, since when it has (nothing to claim lies before), and what its queue says.
create type onward.open_lane as (
  queue text, priority integer, since timestamptz, weight bigint, is_limited boolean, lease interval
);

-- What a claim answers. `jobs` is JSON, an array of visits. A visit to a lane is: its queue, priority, whether these jobs have
-- started, within how many seconds they must, whether it is a suspect; then their seqs and ids, as arrays are written here;
-- their types, once if all are alike; how long they wait_seconds; what is unusual about any of them (seq, attempts,
-- max_attempts, crashes, org_id, backoff, trace); and their payloads, as they stand. It is laid out so because writing each job as a
-- value of its own cost more than taking it. `claim_no` is the same for all of them.
create type onward.claim_result as (
  jobs text, has_suspects boolean, retry_after float8, next_name text, turn_left bigint, is_shared_load boolean, claim_no bigint
);

-- Bytes of payload, as they are stored, in one claim; one job is never too large. All payloads of a claim come as one text, which has a
-- maximum length, and compressed ones are many times as long there.
create function onward.max_claim_size() returns bigint
  language sql immutable parallel safe
  return 2097152;

-- Say where the watermark is. To be asked before lanes are read: whoever moves it gives low marks to those that need them before.
create function onward.watermark() returns timestamptz
  language sql volatile
  return coalesce(onward.to_timestamp(pg_sequence_last_value('onward.watermark')), '-infinity');

-- List lanes from which a job can be taken now, by the name of their queue, the higher priority first.
-- firsts, ends  ranges of names; from_queue, to_queue  the part of them to look at; past_priority  only what is less urgent.
create function onward.find_open_lanes(
  now_at timestamptz, firsts text[], ends text[], from_queue text, to_queue text, past_priority integer,
  with_limited boolean, max_rows integer
) returns onward.open_lane[]
  language plpgsql
as $$
declare
  watermark timestamptz := onward.watermark();
begin
  return array(
    select (l.queue, l.priority, l.since, coalesce(q.weight, 1), q.global_concurrency is not null or q.spacing is not null,
            q.lease)::onward.open_lane
      -- First of all, and one probe for each: which is the first job. Not `exists`: of that the planner may make a join, which
      -- reads all the jobs there are. The ranges come in order, and so do the lanes of each: nothing is sorted.
      from (select l.queue, l.priority,
                   (select j.ready_at from onward.job j
                     where j.queue = l.queue and j.priority = l.priority and j.ready_at >= l.low_mark
                       and j.ready_at is not null and not j.suspect
                       and j.lease_until is null and (j.start_by is null or j.start_by > now_at)
                     order by j.ready_at, j.seq limit 1) as since
              from unnest(firsts, ends) r (first, upto)
              cross join lateral (
                select distinct on (l.queue, l.priority) l.queue, l.priority,
                       coalesce(l.low_mark, watermark) as low_mark
                  from onward.lane l
                 where l.queue >= greatest(r.first collate "C", from_queue collate "C")
                   and l.queue < least(r.upto collate "C", to_queue collate "C")
                   and (l.priority >= past_priority) is not true
                 order by l.queue, l.priority desc, 3) l
             offset 0) l
      left join lateral (select q.* from onward.queue q where q.name = l.queue offset 0) q on true
     where l.since is not null and q.paused is not true
       and (q.spacing is null or with_limited and q.next_permit_at - q.reach <= now_at)
       and (q.global_concurrency is null
            or with_limited and q.global_concurrency > (select count(*) from onward.concurrency_permit p where p.queue = l.queue))
     limit max_rows);
end $$;

-- Say how many jobs a limited queue lets go now, of those wanted. Its row is locked until the transaction ends.
create function onward.permits_available(now_at timestamptz, of_queue onward.queue, wanted bigint) returns bigint
  language plpgsql
as $$
declare
  permit_at timestamptz;
  count     bigint := 0;
begin
  if of_queue.paused then return 0; end if;
  if of_queue.global_concurrency is not null then
    wanted := least(wanted, of_queue.global_concurrency - (select count(*) from onward.concurrency_permit p where p.queue = of_queue.name));
  end if;
  if of_queue.spacing is null then return greatest(wanted, 0); end if;
  -- No permit is further away than a full burst, unless the clock went back or the rate rose.
  permit_at := least(of_queue.next_permit_at, now_at + of_queue.spacing + of_queue.reach);
  while count < wanted and permit_at - of_queue.reach <= now_at loop
    permit_at := greatest(permit_at, now_at - of_queue.credit) + of_queue.spacing;
    count := count + 1;
  end loop;
  return count;
end $$;

-- Use up so many slots of a rate.
create function onward.take_permits(now_at timestamptz, of_queue onward.queue, used bigint) returns void
  language plpgsql
as $$
declare
  permit_at timestamptz := least(of_queue.next_permit_at, now_at + of_queue.spacing + of_queue.reach);
begin
  for i in 1 .. used loop
    permit_at := greatest(permit_at, now_at - of_queue.credit) + of_queue.spacing;
  end loop;
  update onward.queue set next_permit_at = permit_at where name = of_queue.name;
end $$;

-- Say when the next permit of a rate comes that jobs of these queues wait for, in seconds.
create function onward.next_permit_in(now_at timestamptz, firsts text[], ends text[]) returns float8
  language plpgsql
as $$
begin
  return (
    select extract(epoch from min(least(q.next_permit_at, now_at + q.spacing + q.reach) - q.reach) - now_at)::float8
      from unnest(firsts, ends) r (first, upto)
      join onward.queue q on q.name >= r.first collate "C" and q.name < r.upto collate "C"
     where q.spacing is not null and not q.paused and q.next_permit_at - q.reach > now_at
       and exists (select from onward.lane l where l.queue = q.name));
end $$;

-- Move the low mark of a lane up to its first waiting job, so that claims need not walk over what was there before: running jobs, and
-- the remains of ended ones, which stay for as long as anybody's old transaction could see them. Never above the watermark, for
-- there may be jobs that cannot be seen yet; a lane where nobody waits from before has no low mark, or not for long. A row that
-- somebody is writing is passed over, and one that was written a moment ago too: the low mark needs to be nearly right, and its
-- own remains cost as well.
--
-- Since the lanes were looked at, somebody may have given a job back that lies below, and relied on the low mark: see open_lanes(). So
-- it is locked, and what is below looked at once more.
create function onward.raise_low_mark(now_at timestamptz, lane onward.open_lane) returns void
  language plpgsql
as $$
declare
  low record;
begin
  if lane.since >= onward.watermark() then return; end if;
  select k.ctid as row_id, k.low_mark into low from onward.lane k
   where k.queue = lane.queue collate "C" and k.priority = lane.priority and k.low_mark < lane.since
     and k.moved_at < now_at - interval '100 milliseconds'
   limit 1 for update skip locked;
  if not found then return; end if;
  update onward.lane l set low_mark = lane.since, moved_at = now_at
   where l.ctid = low.row_id
     and (select true from onward.job j
           where j.queue = lane.queue collate "C" and j.priority = lane.priority
             and j.ready_at >= low.low_mark and j.ready_at < lane.since
             and j.ready_at is not null and not j.suspect
             and j.lease_until is null and (j.start_by is null or j.start_by > now_at)
           limit 1) is null;
end $$;

-- Give many queues their turns at once: each as many jobs as its weight says, `turns` times, the more urgent lanes first, until
-- there is no room. None of them is limited or has a lease of its own.
-- jobs  a visit for each lane that gave something, in the order of the tour; with_more  first and last lane of queues that may have
-- more; last_queue, last_left  the last one, and what is left of its turn.
create function onward.claim_lanes(
  now_at timestamptz, worker_id text, lanes onward.open_lane[], turns bigint, room integer, lease interval, begins_at text,
  claim_no bigint, out jobs text[], out seqs bigint[], out with_more integer[], out last_queue text, out last_left bigint
)
  language plpgsql
as $$
#variable_conflict use_column
declare
  visited  record;
  left_out integer[] := '{}';
begin
  with_more := '{}';
  with taken as (
    update onward.job j
       set claim_no = claim_lanes.claim_no, attempts = j.attempts + 1,
           worker_id = claim_lanes.worker_id, lease = claim_lanes.lease, lease_until = now_at + claim_lanes.lease,
           claimed_at = now_at, started_at = now_at, has_permit = false,
           updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
     where j.ctid = any (array(
             select s.row_id
               from (
             select x.row_id, sum(x.size) over (rows unbounded preceding) - x.size as size_before
               from (select min(l.n)::integer as first, max(l.n)::integer as last, min(l.weight) * turns as turn
                       from unnest(lanes) with ordinality l (queue, priority, since, weight, is_limited, lease, n)
                      group by l.queue order by 1) q
               cross join lateral (
                 select c.row_id, c.size from generate_series(q.first, q.last) n
                   cross join lateral (
                     select c.ctid as row_id, pg_column_size(c.payload) as size from onward.job c
                      where c.queue = (lanes[n]).queue collate "C" and c.priority = (lanes[n]).priority
                        and c.ready_at >= (lanes[n]).since and c.ready_at is not null and not c.suspect
                        and c.lease_until is null and (c.start_by is null or c.start_by > now_at)
                      order by c.ready_at, c.seq limit q.turn for update skip locked) c
                  limit q.turn) x
              limit room) s
              where s.size_before < onward.max_claim_size()))
    returning j.seq, j.id, j.type, j.payload, j.attempts, j.max_attempts, j.crashes, j.org_id, j.backoff,
              j.trace, j.ready_at, j.queue, j.priority),
  visits as (
    select t.queue, t.priority, array_agg(t.seq) as seqs,
           left(json_build_array(t.queue, t.priority, true, null, false)::text, -1)
           || ',"' || array_agg(t.seq)::text || '","' || array_agg(t.id)::text || '",'
           || case when min(t.type collate "C") = max(t.type collate "C") then to_json(min(t.type collate "C")) else to_json(array_agg(t.type)) end || ','
           || to_json(array_agg(date_part('epoch', now_at - t.ready_at))) || ','
           || coalesce(json_agg(json_build_array(t.seq, t.attempts, t.max_attempts, t.crashes, t.org_id, t.backoff,
                                                 t.trace))
                         filter (where t.attempts <> 1 or t.max_attempts <> 5 or t.crashes <> 0
                                       or t.org_id is not null or t.backoff is not null or t.trace is not null)::text, 'null')
           || ',' || json_agg(t.payload)::text || ']' as jobs
      from taken t group by t.queue, t.priority)
  select array_agg(v.jobs order by v.queue < begins_at collate "C", v.queue, v.priority desc),
         array_agg(v.queue order by v.queue < begins_at collate "C", v.queue, v.priority desc) as queues,
         array_agg(cardinality(v.seqs) order by v.queue < begins_at collate "C", v.queue, v.priority desc) as counts,
         (select array_agg(t.seq) from taken t) as seqs
    into visited from visits v;
  jobs := coalesce(visited.array_agg, '{}'); seqs := coalesce(visited.seqs, '{}');
  -- In the order of the tour: who had no turn because there was no room comes first, who gave a whole turn may have more.
  for visited in
    select min(t.n)::integer as first, max(t.n)::integer as last, min(t.weight) * turns as turn, t.queue, sum(t.got) as got
      -- Not a join: here it would compare each with each.
      from (select l.queue, l.n, l.weight, 0 as got
              from unnest(lanes) with ordinality l (queue, priority, since, weight, is_limited, lease, n)
            union all
            select g.queue, null, null, g.got from unnest(visited.queues, visited.counts) g (queue, got)) t
     group by t.queue order by 1
  loop
    if visited.got >= visited.turn then
      with_more := with_more || visited.first || visited.last;
    elsif visited.got = 0 and cardinality(seqs) = room then
      left_out := left_out || visited.first || visited.last;
    end if;
    if visited.got > 0 then
      last_queue := visited.queue; last_left := visited.turn - visited.got;
    end if;
  end loop;
  with_more := left_out || with_more;
end $$;

-- Take what there is room for: `slots` jobs that start at once, `prefetch_started` more that do too but from no limited queue, and `prefetch_claimed`
-- more that do not.
-- next_name, turn_left  where the tour goes on, as the last answer said; notified_queue  a queue that is to give one job before that.
create function onward.claim(
  now bigint, worker_id text, firsts text[], ends text[], slots integer, prefetch_started integer, prefetch_claimed integer, lease bigint,
  next_name text, turn_left bigint, notified_queue text default null, claim_no bigint default onward.new_claim_no()
) returns onward.claim_result
  language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
  set enable_mergejoin = off set enable_material = off set enable_hashagg = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at     timestamptz := coalesce(onward.to_timestamp(claim.now), clock_timestamp());
  own_lease  interval := onward.to_interval(claim.lease);
  begins_at  text := claim.next_name;
  lanes      onward.open_lane[] := '{}';
  more_lanes onward.open_lane[];
  part       integer := 1;             -- of the tour: from begins_at on, then from the beginning, then it is over
  at_queue   text := claim.next_name;
  wanted     bigint;
  turns      bigint;
  turn       bigint;
  first_lane integer;                  -- the lanes of the queue that is visited
  last_lane  integer := 0;
  with_more  integer[] := '{}';        -- first and last lane of queues with more to give
  is_filling boolean := false;
  visit      integer := 0;
  lane       onward.open_lane;
  settings   onward.queue;
  quota      bigint;
  got        bigint;
  got_before bigint;
  taken      bigint;
  starts     boolean;
  until      timestamptz;
  taken_seqs bigint[];
  taken_jobs text;
  visits     text[] := '{}';
  leased     bigint[] := '{}';
  first_end  timestamptz;
  size_left  bigint := onward.max_claim_size();
  shared     record;
  first      onward.claim_result;
  may_share  boolean;
  waiting    record;
  nothing    text;
begin
  -- Settings change only while nobody claims: see configure(). Not performed, which takes a statement.
  nothing := onward.enter_claims();

  -- A queue that was empty would else wait for as long as the tour of all the others takes.
  if notified_queue is not null and slots + prefetch_started > 0 then
    first := onward.claim(now, worker_id, array[notified_queue], array[notified_queue || '!'], least(slots, 1), case when slots = 0 then 1 else 0 end,
                          0, claim.lease, '', 0, null, claim.claim_no);
    if first.jobs is not null then
      visits := array[substr(first.jobs, 2, length(first.jobs) - 2)];
      if slots > 0 then slots := slots - 1; else prefetch_started := prefetch_started - 1; end if;
    end if;
  end if;

  while slots + prefetch_started + prefetch_claimed > 0 loop
    -- Which queue is next?
    if not is_filling then
      if last_lane >= cardinality(lanes) then
        while part <= 2 and cardinality(lanes) - last_lane < slots + prefetch_started + prefetch_claimed loop
          wanted := slots + prefetch_started + prefetch_claimed - (cardinality(lanes) - last_lane);
          more_lanes := onward.find_open_lanes(now_at, firsts, ends, at_queue, case when part = 2 then begins_at end, null,
                                    slots > 0, wanted::integer);
          lanes := lanes || more_lanes;
          if cardinality(more_lanes) < wanted then
            part := case when begins_at = '' then 3 else part + 1 end;
            at_queue := '';
          else
            lane := lanes[cardinality(lanes)];
            at_queue := lane.queue || '!';  -- '!' sorts before all that may stand in a name
            -- If no queue has two lanes here, these fill the room. Else the last one must be whole: what is less urgent
            -- would come before what is more.
            if (lanes[last_lane + 1]).queue <> lane.queue and not exists (
                 select from generate_series(last_lane + 2, cardinality(lanes)) n
                  where (lanes[n]).queue = (lanes[n - 1]).queue) then
              continue;
            end if;
            lanes := lanes || onward.find_open_lanes(now_at, array[lane.queue], array[at_queue], '', null, lane.priority, slots > 0,
                                          1000000);
          end if;
        end loop;
        if cardinality(lanes) = 0 then  -- this and the next: as below, without a statement
          turns := 1;
        elsif turns is null and cardinality(lanes) = 1 and not (lanes[1]).is_limited then
          turns := case when part > 2 then greatest(1, (slots + prefetch_started + prefetch_claimed) / (lanes[1]).weight) else 1 end;
        elsif turns is null then
          -- All lanes that can give are known if there are fewer than there is room for: each has several turns then.
          if part > 2 then
            select greatest(1, (slots + prefetch_started + prefetch_claimed) / nullif(sum(w.weight), 0)) into turns
              from (select distinct on (l.queue) l.weight from unnest(lanes) l) w;
          end if;
          turns := coalesce(turns, 1);
          -- In one order, before any of them is used: nobody waits in a circle. Who has one already waits for none.
          if notified_queue is null then
            perform 1 from onward.queue q
              where q.name = any (array(select l.queue collate "C" from unnest(lanes) l where l.is_limited))
              order by q.name for update;
          end if;
        end if;
      end if;
      if last_lane >= cardinality(lanes) then
        is_filling := true;
        continue;
      end if;
      -- Many queues that have nothing said of them have their turns in one statement: to begin one costs as much as ten jobs.
      may_share := visit = 0 and turn_left = 0 and slots + prefetch_started > 1
                   and (lanes[1]).queue <> (lanes[cardinality(lanes)]).queue;
      if may_share then
        may_share := not exists (select from unnest(lanes) l where l.is_limited or l.lease is not null);
      end if;
      if may_share then
        visit := 1;
        select * into shared from onward.claim_lanes(now_at, claim.worker_id, lanes, turns, slots + prefetch_started, own_lease,
                                                          begins_at, claim.claim_no);
        visits := visits || shared.jobs; leased := shared.seqs; first_end := now_at + own_lease;
        got := cardinality(leased);
        size_left := size_left - octet_length(array_to_string(shared.jobs, ''));
        prefetch_started := prefetch_started - greatest(got - slots, 0)::integer; slots := slots - least(got, slots)::integer;
        last_lane := cardinality(lanes);
        for lane in select * from unnest(lanes) loop
          if random() * 10 * last_lane < got then  -- as below, on the average
            perform onward.raise_low_mark(now_at, lane);
          end if;
        end loop;
        if size_left <= 0 then
          slots := 0; prefetch_started := 0; prefetch_claimed := 0;
        end if;
        if slots + prefetch_started = 0 then
          next_name := shared.last_queue || '!';
          if shared.last_left > 0 then
            next_name := shared.last_queue; turn_left := shared.last_left;
          end if;
        else
          next_name := (lanes[last_lane]).queue || '!';
        end if;
        with_more := shared.with_more;
        continue;
      end if;
      first_lane := last_lane + 1;
      last_lane := first_lane;
      while last_lane < cardinality(lanes) and (lanes[last_lane + 1]).queue = (lanes[first_lane]).queue loop
        last_lane := last_lane + 1;
      end loop;
      turn := (lanes[first_lane]).weight * turns;
      if visit = 0 and turn_left > 0 and (lanes[first_lane]).queue = begins_at then
        turn := turn_left;
      end if;
    else
      exit when cardinality(with_more) = 0;
      first_lane := with_more[1]; last_lane := with_more[2]; with_more := with_more[3:];
      turn := slots + prefetch_started + prefetch_claimed;
    end if;

    -- Take its turn.
    lane := lanes[first_lane];
    visit := visit + 1;
    got := 0;
    settings := null;
    -- A limited queue is never claimed ahead of a free slot.
    wanted := least(turn, case when lane.is_limited then slots else slots + prefetch_started + prefetch_claimed end);
    quota := wanted;
    if lane.is_limited and wanted > 0 then
      select * into settings from onward.queue q where q.name = lane.queue collate "C" for update skip locked;
      quota := case when found then onward.permits_available(now_at, settings, wanted) else 0 end;
    end if;
    for i in first_lane .. last_lane loop
      lane := lanes[i];
      got_before := got;
      foreach starts in array array[true, false] loop
        taken := least(quota - got, case when lane.is_limited then case when starts then slots else 0 end
                                         when starts then slots + prefetch_started else prefetch_claimed end);
        continue when taken <= 0;
        until := now_at + coalesce(lane.lease, own_lease);
        with taken as (
          update onward.job j
             set claim_no = claim.claim_no,
                 attempts = j.attempts + case when starts then 1 else 0 end,
                 worker_id = claim.worker_id, lease = coalesce(lane.lease, own_lease), lease_until = until,
                 claimed_at = now_at, started_at = case when starts then now_at end,
                 has_permit = settings.global_concurrency is not null,
                 updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
           where j.ctid = any (array(
                   select s.row_id
                     from (select c.row_id, sum(c.size) over (rows unbounded preceding) - c.size as size_before
                             from (select c.ctid as row_id, pg_column_size(c.payload) as size from onward.job c
                                    where c.queue = lane.queue collate "C" and c.priority = lane.priority and c.ready_at >= lane.since
                                      and c.ready_at is not null and not c.suspect
                                      and c.lease_until is null and (c.start_by is null or c.start_by > now_at)
                                    order by c.ready_at, c.seq limit taken for update skip locked) c) s
                    where s.size_before < size_left))
          returning j.seq, j.id, j.type, j.payload, j.attempts, j.max_attempts, j.crashes, j.org_id, j.backoff,
                    j.trace, j.ready_at)
        select count(*), array_agg(t.seq),
               left(json_build_array(lane.queue, lane.priority, starts, date_part('epoch', settings.credit), false)::text, -1)
               || ',"' || array_agg(t.seq)::text || '","' || array_agg(t.id)::text || '",'
               || case when min(t.type collate "C") = max(t.type collate "C") then to_json(min(t.type collate "C"))
                       else (select to_json(array_agg(o.type)) from taken o) end || ','
               || to_json(array_agg(date_part('epoch', now_at - t.ready_at))) || ','
               || coalesce(json_agg(json_build_array(t.seq, t.attempts, t.max_attempts, t.crashes, t.org_id, t.backoff,
                                                 t.trace))
                             filter (where t.attempts <> starts::integer or t.max_attempts <> 5
                                           or t.crashes <> 0 or t.org_id is not null or t.backoff is not null
                                           or t.trace is not null)::text, 'null')
               || ',' || json_agg(t.payload)::text || ']'
          into taken, taken_seqs, taken_jobs from taken t;
        if taken > 0 then
          leased := leased || taken_seqs; first_end := least(first_end, until);
          if settings.global_concurrency is not null then
            insert into onward.concurrency_permit (seq, queue) select t, lane.queue from unnest(taken_seqs) t
            on conflict (seq) do update set queue = excluded.queue;  -- a stale one, left by hand or by a restore
          end if;
          visits := visits || taken_jobs;
          size_left := size_left - octet_length(taken_jobs);
        end if;
        got := got + taken;
        if starts then
          prefetch_started := prefetch_started - greatest(taken - slots, 0)::integer; slots := slots - least(taken, slots)::integer;
        else
          prefetch_claimed := prefetch_claimed - taken::integer;
        end if;
        exit when size_left <= 0;
      end loop;
      if random() * 10 < got - got_before then  -- about once for ten jobs: as dear as to walk over them
        perform onward.raise_low_mark(now_at, lane);
      end if;
      exit when got >= quota or size_left <= 0;
    end loop;
    if got > 0 and settings.spacing is not null then
      perform onward.take_permits(now_at, settings, got);
    end if;
    if size_left <= 0 then  -- the rest is for the next claim, which the client makes at once
      slots := 0; prefetch_started := 0; prefetch_claimed := 0;
    end if;

    -- Where the tour goes on.
    next_name := lane.queue || '!'; turn_left := 0;
    if slots + prefetch_started + prefetch_claimed = 0 and got = wanted and got < turn and not is_filling then
      next_name := lane.queue; turn_left := turn - got;
    elsif got = wanted and got > 0 and not is_filling then
      with_more := with_more || first_lane || last_lane;
    end if;
  end loop;

  if cardinality(leased) > 0 then
    insert into onward.lease_batch (until, seqs) values (first_end, leased);
  end if;
  select exists (select from unnest(firsts, ends) r (first, upto)
                   cross join lateral (  -- not a join: that may read those of all queues
                     select from onward.job j
                      where j.queue >= r.first collate "C" and j.queue < r.upto collate "C"
                        and j.ready_at is not null and j.suspect and j.lease_until is null
                      limit 1) j) as suspects,
         slots + prefetch_started + prefetch_claimed > 0 and exists (select from onward.queue q where q.spacing is not null) as rates,
         exists (select from onward.worker w where w.id <> claim.worker_id) as others
    into waiting;
  return (
    case when cardinality(visits) > 0 then '[' || array_to_string(visits, ',') || ']' end, waiting.suspects,
    case when waiting.rates then onward.next_permit_in(now_at, firsts, ends) end,
    -- Who had room left has been to all of them: wherever it begins the next time, nobody was passed over.
    case when slots + prefetch_started + prefetch_claimed > 0 then '' else next_name end,
    case when slots + prefetch_started + prefetch_claimed > 0 then 0 else turn_left end, waiting.others,
    claim.claim_no)::onward.claim_result;
end $$;

-- Take jobs of one queue, which start at once, if nothing is said of that queue. It is what most claims of a worker come to that
-- waits for work, and costs a third of a tour. Answers a row without a seq where something is said, and a tour is needed.
create function onward.claim_queue(now bigint, worker_id text, of_queue text, room integer, lease bigint)
  returns table (
    seq bigint, claim_no bigint, id text, type text, priority integer, wait_seconds float8, attempts integer, max_attempts bigint,
    crashes integer, org_id text, backoff text, trace text, payload text
  )
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at    timestamptz := coalesce(onward.to_timestamp(claim_queue.now), clock_timestamp());
  until     timestamptz := now_at + onward.to_interval(claim_queue.lease);
  nothing   text := onward.enter_claims();  -- as in claim()
  watermark timestamptz := onward.watermark();
  new_no    bigint := onward.new_claim_no();
begin
  return query
  with taken as (
    update onward.job j
       set claim_no = new_no, attempts = j.attempts + 1, worker_id = claim_queue.worker_id,
           lease = until - now_at, lease_until = until, claimed_at = now_at, started_at = now_at,
           updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
     where j.ctid = any (array(
             select s.row_id
               from (
             select c.row_id, sum(c.size) over (rows unbounded preceding) - c.size as size_before
               from (
             select c.row_id, c.size
               from (select l.priority, min(coalesce(l.low_mark, watermark)) as low_mark from onward.lane l
                      where l.queue = of_queue collate "C"
                        and not exists (select from onward.queue q
                                         where q.name = of_queue collate "C"
                                           and (q.paused or q.global_concurrency is not null or q.spacing is not null
                                                or q.lease is not null))
                      group by l.priority order by l.priority desc) l
               cross join lateral (
                 select c.ctid as row_id, pg_column_size(c.payload) as size from onward.job c
                  where c.queue = of_queue collate "C" and c.priority = l.priority and c.ready_at >= l.low_mark
                    and c.ready_at is not null and not c.suspect
                    and c.lease_until is null and (c.start_by is null or c.start_by > now_at)
                  order by c.ready_at, c.seq limit room for update skip locked) c
              limit room) c) s
              where s.size_before < onward.max_claim_size()))
    returning j.seq, j.claim_no, j.id, j.type, j.priority, j.ready_at, j.attempts, j.max_attempts, j.crashes, j.org_id,
              j.backoff, j.trace, j.payload),
  leased as (
    insert into onward.lease_batch (until, seqs) select until, array_agg(t.seq) from taken t having count(*) > 0)
  select t.seq, t.claim_no, t.id::text, t.type::text, t.priority::integer, date_part('epoch', now_at - t.ready_at),
         t.attempts::integer, t.max_attempts::bigint, t.crashes, t.org_id, t.backoff::text, t.trace, t.payload::text
    from taken t;
  if not found then
    return query select null::bigint, null::bigint, null, null, null::integer, null::float8, null::integer, null::bigint,
                        null::integer, null, null, null, null
                   from onward.queue q
                  where q.name = of_queue collate "C"
                    and (q.paused or q.global_concurrency is not null or q.spacing is not null or q.lease is not null);
  end if;
end $$;

-- Take the suspect that has waited longest and that its queue lets go now; it is to run alone in a child process.
create function onward.claim_suspect(now bigint, worker_id text, firsts text[], ends text[], lease bigint)
  returns onward.claim_result
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at    timestamptz := coalesce(onward.to_timestamp(claim_suspect.now), clock_timestamp());
  waits     boolean := false;
  found_one boolean := false;
  new_no    bigint := onward.new_claim_no();
  taken_job text;
  one       record;
  settings  onward.queue;
begin
  perform onward.enter_claims();
  for one in
    select j.seq, j.queue, q.global_concurrency is not null or q.spacing is not null as is_limited, q.lease
      from unnest(firsts, ends) r (first, upto)
      cross join lateral (  -- not a join: that may read those of all queues
        select j.* from onward.job j
         where j.queue >= r.first collate "C" and j.queue < r.upto collate "C"
           and j.ready_at is not null and j.suspect and j.lease_until is null and (j.start_by is null or j.start_by > now_at)
        offset 0) j
      left join onward.queue q on q.name = j.queue
     where q.paused is not true
     order by j.ready_at, j.seq limit 20
  loop
    if found_one then
      waits := true;
      exit;
    end if;
    settings := null;
    if one.is_limited then
      select * into settings from onward.queue q where q.name = one.queue collate "C" for update skip locked;
      if not found or onward.permits_available(now_at, settings, 1) < 1 then
        waits := true;
        continue;
      end if;
    end if;
    with taken as (
      update onward.job j
         set claim_no = new_no, attempts = j.attempts + 1,
             worker_id = claim_suspect.worker_id, lease = coalesce(one.lease, onward.to_interval(claim_suspect.lease)),
             lease_until = now_at + coalesce(one.lease, onward.to_interval(claim_suspect.lease)), claimed_at = now_at,
             started_at = now_at, has_permit = settings.global_concurrency is not null,
             updated_at = greatest(now_at, j.updated_at + interval '1 microsecond')
       where j.ctid = any (array(
               select c.ctid from onward.job c where c.seq = one.seq and c.suspect and c.lease_until is null
                  for update skip locked))
      returning j.*),
    leased as (
      insert into onward.lease_batch (until, seqs) select t.lease_until, array[t.seq] from taken t),
    permitted as (
      insert into onward.concurrency_permit (seq, queue) select t.seq, t.queue from taken t where t.has_permit
      on conflict (seq) do update set queue = excluded.queue)
    select left(json_build_array(
             t.queue, t.priority, true, date_part('epoch', settings.credit), true, array[t.seq]::text, array[t.id]::text, t.type,
             json_build_array(date_part('epoch', now_at - t.ready_at)),
             json_build_array(json_build_array(t.seq, t.attempts, t.max_attempts, t.crashes, t.org_id,
                                               t.backoff, t.trace)))::text, -1) || ',[' || t.payload::text || ']]'
      into taken_job from taken t;
    found_one := taken_job is not null;
    if found_one and settings.spacing is not null then
      perform onward.take_permits(now_at, settings, 1);
    end if;
  end loop;
  return ('[' || taken_job || ']', waits, case when not found_one then onward.next_permit_in(now_at, firsts, ends) end, null,
          null, null, new_no)::onward.claim_result;
end $$;

-- One round trip: outcomes in, then starts, then new claims out, in that order. What is settled comes before what is picked:
-- picking leaves locks on rows that it passes over, and two who picked first and settled then would wait for each other.
-- Answers the claims that were lost, as JSON, and what was claimed; without a worker_id nothing is.
--
-- Settings change only while nobody claims. Whoever changes them may wait for jobs that are being settled, so the right to claim
-- comes first. A transaction of somebody else's may hold a job for long; it is not wait_seconds for, and nothing of this is done then:
-- see lock_available().
create function onward.exchange(
  now bigint, channel text,
  completed_seqs bigint[], completed_claims bigint[], completed_results text[],
  ended_seqs bigint[], ended_claims bigint[], ended_statuses text[], ended_reasons text[], ended_failures text[],
  returned_seqs bigint[], returned_claims bigint[], returned_moves text[], returned_delays bigint[], returned_reasons text[],
  returned_failures text[],
  start_seqs bigint[], start_claims bigint[],
  worker_id text, firsts text[], ends text[], slots integer, prefetch_started integer, prefetch_claimed integer, lease bigint,
  next_name text, turn_left bigint, notified_queue text,
  out lost json, out claimed onward.claim_result
)
  language plpgsql
  set lock_timeout = '250ms'
as $$
#variable_conflict use_column
declare
  nothing text;
begin
  if worker_id is not null then nothing := onward.enter_claims(); end if;
  if cardinality(completed_seqs) + cardinality(ended_seqs) + cardinality(returned_seqs) + cardinality(start_seqs) > 0 then
    select json_agg(json_build_array(l.seq, l.claim_no)) into lost from (
      select * from onward.settle(now, channel, completed_seqs, completed_claims, completed_results, ended_seqs, ended_claims, ended_statuses,
                                  ended_reasons, ended_failures, returned_seqs, returned_claims, returned_moves, returned_delays, returned_reasons,
                                  returned_failures)
      union all
      select * from onward.start(now, start_seqs, start_claims)) l;
  end if;
  if worker_id is not null then
    claimed := onward.claim(now, worker_id, firsts, ends, slots, prefetch_started, prefetch_claimed, lease, next_name, turn_left, notified_queue);
  end if;
end $$;
