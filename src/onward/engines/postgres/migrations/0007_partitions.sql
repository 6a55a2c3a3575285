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
-- behind this: a lock that is not to be had is left for the next time.
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
      execute format('create table %I.%I (like onward.history_done including defaults including constraints)', own_schema, part);
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

-- Make days ahead, archive those that nobody keeps any longer, and drop those that were archived long enough; answer how many
-- jobs are no longer kept. What has no day of its own is in history_day_other, and goes one by one; so does what is in a day
-- that others keep for longer, and the day waits for it. With the owner's rights, for a worker may have none to make tables.
--
-- At most one day with jobs in it is archived at a time, and whoever ends a job waits for nobody's look at it: what takes long is
-- done under locks on the day alone, readers wait only while its rows are looked through, and the history itself is locked last.
create function onward.rotate_partitions(now bigint, number bigint, leader_id text) returns bigint
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
  part       text;
  day        date;
  waits      boolean;
  gone       bigint;
  total      bigint := 0;
begin
  if not onward.is_leader(now_at, rotate_partitions.number, rotate_partitions.leader_id) then return 0; end if;
  perform onward.create_partitions(now_at);
  select * into days from onward.max_retention();
  for part, day in
    select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'onward.history_done'::regclass and c.relname ~ '^history_day_[0-9]{8}$'
       and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now_at - days.kept)::date
     order by c.relname
  loop
    begin
      execute format('select exists (select from onward.retention r where not r.uses_partitions
                                        and exists (select from %I.%I h where h.queue = r.name))', own_schema, part) into waits;
      continue when waits;
      execute format('lock table %I.%I in share mode', own_schema, part);
      execute format('delete from onward.key k using %I.%I h where k.digest = h.key_digest', own_schema, part);
      execute format('delete from onward.log l using %I.%I h where l.seq = h.seq', own_schema, part);
      execute format('select count(*) from %I.%I', own_schema, part) into gone;
      -- With it, the archive need not look at every row again while the history is locked.
      execute format('alter table %I.%I add constraint of_its_day check (completed_at >= %L and completed_at < %L)', own_schema, part,
                     day::timestamptz, (day + 1)::timestamptz);
      execute format('alter table onward.history_done detach partition %I.%I', own_schema, part);
      execute format('alter table onward.archive_days attach partition %I.%I for values from (%L) to (%L)', own_schema, part,
                     day::timestamptz, (day + 1)::timestamptz);
      update onward.event_log l set pruned_at = greatest(l.pruned_at, day + 1);
      total := total + gone;
      exit when gone > 0;
    exception when lock_not_available then
      exit;
    end;
  end loop;
  for part in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'onward.archive_days'::regclass
       and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now_at - days.longest - days.archived)::date
  loop
    begin
      execute format('drop table %I.%I', own_schema, part);
    exception when lock_not_available then
      exit;
    end;
  end loop;
  return total;
end $$;
