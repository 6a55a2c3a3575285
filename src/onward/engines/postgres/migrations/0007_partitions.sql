-- History by the day: days that nobody keeps any longer go at once, instead of row by row.

-- Give a part of the history its replica identity, which it does not inherit: its part of history_seq.
create function onward.set_replica_identity(part regclass) returns void
  language plpgsql
as $$
begin
  execute format('alter table %s replica identity using index %I', part,
                 (select i.relname from pg_index x join pg_class i on i.oid = x.indexrelid
                    join pg_inherits h on h.inhrelid = i.oid
                   where x.indrelid = part and h.inhparent in (
                           select 'onward.history_seq'::regclass
                           union all
                           select p.inhrelid from pg_inherits p where p.inhparent = 'onward.history_seq'::regclass)));
end $$;

select onward.set_replica_identity('onward.history_failed');
select onward.set_replica_identity('onward.history_day_other');

-- Make a part of the history for a day and each of the next three.
--
-- Made ahead, because a job that ends while its own day is being made would have to be written again. Nobody waits for long
-- behind this: a lock that is not to be had is left for the next time. Each has its day as a check from the start: with it, the
-- archive takes the part over without reading its rows.
create function onward.create_partitions(now_at timestamptz) returns void
  language plpgsql
  set lock_timeout = '200ms'
  set timezone = 'utc'
as $$
declare
  own_schema text := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where c.oid = 'onward.history_done'::regclass);
  day        date;
  part       text;
begin
  for day in select d::date from generate_series(now_at::date, now_at::date + 3, interval '1 day') d loop
    part := 'history_day_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass(format('%I.%I', own_schema, part)) is not null;
    begin
      execute format('create table %I.%I (like onward.history_done including defaults including constraints,
                                          constraint of_its_day check (completed_at >= %L and completed_at < %L))', own_schema, part,
                     day::timestamptz, (day + 1)::timestamptz);
      execute format('alter table %I.%I enable row level security', own_schema, part);
      execute format('alter table onward.history_done attach partition %I.%I for values from (%L) to (%L)', own_schema, part,
                     day::timestamptz, (day + 1)::timestamptz);
      perform onward.set_replica_identity(format('%I.%I', own_schema, part)::regclass);
    exception when lock_not_available or check_violation then
      null;  -- somebody reads, or jobs of that day are in history_day_other already
    end;
  end loop;
end $$;

select onward.create_partitions(clock_timestamp());

-- Days on their way into the archive: keys and log lines of the jobs up to `seq` have been removed, of so many jobs.
create table onward.archive_progress (
  part text   collate "C" primary key,
  seq  bigint not null,
  jobs bigint not null
);

-- Remove the keys and the log lines of the next jobs of a day, at most `max_rows`; answer whether those were the last.
create function onward.remove_keys_of_day(part regclass, max_rows integer) returns boolean
  language plpgsql
  set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  name constant text := part::text;
  next record;
begin
  execute format('select max(h.seq) as seq, count(*) as jobs, array_agg(h.seq) as seqs,
                         array_agg(h.key_digest) filter (where h.key_digest is not null) as digests,
                         array_agg(h.id) filter (where h.key_digest is not null) as ids
                    from (select h.seq, h.id, h.key_digest from %s h where h.seq > $1 order by h.seq limit $2) h', part)
    into next using coalesce((select p.seq from onward.archive_progress p where p.part = name), -1), max_rows;
  delete from onward.key k using unnest(next.digests, next.ids) g (digest, id) where k.digest = g.digest and k.id = g.id;
  delete from onward.log l where l.seq = any (next.seqs);
  insert into onward.archive_progress as p (part, seq, jobs) values (name, coalesce(next.seq, 0), next.jobs)
  on conflict (part) do update set seq = greatest(p.seq, excluded.seq), jobs = p.jobs + excluded.jobs;
  return next.jobs < max_rows;
end $$;

-- Make days ahead, archive those that nobody keeps any longer, and drop those that were archived long enough; answer how many
-- jobs are no longer kept, and whether there is more to do. What has no day of its own is in history_day_other, and goes one by one;
-- so does what is in a day that others keep for longer, and the day waits for it. With the owner's rights, for a worker may have none
-- to make tables.
--
-- A call holds the leader's row, and no term can be renewed meanwhile. So each does a bounded part: the keys and log lines of at most
-- `max_rows` jobs, or the move of one day, which reads none of its rows. archive_progress says where the next call goes on, whichever
-- leader makes it.
create function onward.rotate_partitions(now bigint, number bigint, leader_id text, max_rows integer)
  returns table (archived bigint, more boolean)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '200ms'
  set timezone = 'utc'
as $$
#variable_conflict use_column
declare
  now_at     timestamptz := coalesce(onward.to_timestamp(rotate_partitions.now), clock_timestamp());
  own_schema text := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.oid = 'onward.history_done'::regclass);
  days       record;
  day_part   regclass;
  day        date;
  waits      boolean;
begin
  archived := 0; more := false;
  if not onward.is_leader(now_at, rotate_partitions.number, rotate_partitions.leader_id) then
    return next;
    return;
  end if;
  perform onward.create_partitions(now_at);
  select * into days from onward.max_retention();
  for day_part, day in
    select c.oid::regclass, to_date(right(c.relname, 8), 'YYYYMMDD') from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'onward.history_done'::regclass and c.relname ~ '^history_day_[0-9]{8}$'
       and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now_at - days.kept)::date
     order by c.relname
  loop
    begin
      execute format('select exists (select from onward.retention r where not r.uses_partitions
                                        and exists (select from %s h where h.queue = r.name))', day_part) into waits;
      continue when waits;
      if not onward.remove_keys_of_day(day_part, max_rows) then
        more := true;
        exit;
      end if;
      execute format('alter table onward.history_done detach partition %s', day_part);
      execute format('alter table onward.archive_days attach partition %s for values from (%L) to (%L)', day_part,
                     day::timestamptz, (day + 1)::timestamptz);
      update onward.event_log l set pruned_at = greatest(l.pruned_at, day + 1);
      delete from onward.archive_progress p where p.part = day_part::text returning p.jobs into archived;
      more := archived > 0;
      exit when more;
    exception when lock_not_available then
      exit;
    end;
  end loop;
  for day_part in
    select c.oid::regclass from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'onward.archive_days'::regclass
       and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now_at - days.longest - days.archived)::date
  loop
    begin
      execute format('drop table %s', day_part);
    exception when lock_not_available then
      exit;
    end;
  end loop;
  return next;
end $$;
