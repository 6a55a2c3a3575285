-- For everybody who speaks SQL: triggers, psql, PostgREST and Supabase clients, other languages. And who may do what.

-- Make an id: a UUID of version 7, so that ids made later sort later.
create function onward.new_id() returns uuid
  language sql volatile parallel safe
  return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
           substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1),
         'hex')::uuid;

alter table onward.job alter column id set default onward.new_id();

-- Shorten a key of any length to what an index can hold, as onward.keys.digest does.
create function onward.digest(variadic parts text[]) returns bytea
  language sql immutable strict parallel safe
  return (select sha256(string_agg(int8send(octet_length(convert_to(p.part, 'UTF8'))::bigint) || convert_to(p.part, 'UTF8'),
                                   ''::bytea order by p.no))
            from unnest(parts) with ordinality p (part, no));

-- Add a job; answer its id, or that of the job that stands for it already. It is part of your transaction.
create function onward.enqueue(
  type text, payload jsonb default '{}', queue text default 'default', priority integer default 0, org_id text default null,
  delay interval default null, run_at timestamptz default null, start_by timestamptz default null,
  idempotency_key text default null, dedupe_key text default null, max_attempts integer default null
) returns uuid
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  id      uuid := onward.new_id();
  channel text := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.oid = 'onward.job'::regclass);
  wrong   text;
begin
  wrong := case
    when type is null or btrim(type) = '' then 'type must be a non-empty string'
    when payload is null then 'payload must be JSON: ''null'' is, NULL is not'
    when octet_length(payload::text) > 10485760 then format(
      'Job payload size %s MB exceeds limit of 10.0 MB', round(octet_length(payload::text) / 1048576.0, 1))
    when queue is null or length(queue) > 120 or queue !~ '^[a-z0-9_.-]+(/[a-z0-9_.-]+)*$' then
      'queue must be lower-case letters, digits, ''_'', ''.'', ''-'', in parts joined by ''/'', at most 120 characters'
    when priority is null or priority not between 0 and 1000000 then 'priority must be a whole number from 0 to 1,000,000'
    when delay is not null and run_at is not null then 'give delay or run_at, not both'
    when delay < interval '0' then 'delay must be zero or more'
    when not isfinite(run_at) or not isfinite(start_by) then 'run_at and start_by must be moments'
    when max_attempts < 1 then 'max_attempts must be at least 1'
    when idempotency_key = '' or dedupe_key = '' or org_id = '' then 'org_id and keys must not be empty: leave them out'
  end;
  if wrong is not null then
    raise exception '%', wrong using errcode = 'invalid_parameter_value';
  end if;
  if idempotency_key is null and dedupe_key is null then
    perform onward.enqueue_alike(
      null, array[id], json_build_array(payload), queue, type, priority, org_id, onward.micros(delay), onward.micros(run_at),
      onward.micros(start_by), max_attempts::bigint, null::text, null::text, null::integer, null::text, null::text,
      channel, '*,@');
    return id;
  end if;
  return (select e.id::uuid from onward.enqueue_keyed(
    null, array[id::text], array[payload::text], array[queue], array[type], array[priority], array[org_id],
    array[onward.micros(delay)], array[onward.micros(run_at)], array[onward.micros(start_by)], array[max_attempts::bigint],
    array[null::text], array[null::text], array[null::integer], array[null::text], array[null::text], channel, '*,@',
    null, array[idempotency_key], array[onward.digest(type, idempotency_key)], array[dedupe_key], array[onward.digest(dedupe_key)],
    array[null::bytea], array[null::bigint], array[null::bigint]) e);
end $$;

-- Take a job back; answer whether it was there to be taken back.
create function onward.cancel(id uuid, reason text default 'cancelled') returns boolean
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  channel text := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.oid = 'onward.job'::regclass);
begin
  perform from onward.cancel_many(null, channel, array(select j.seq from onward.job j where j.id = cancel.id),
                                  coalesce(reason, 'cancelled'), true);
  return found;
end $$;

-- Nobody but the owner sees or does anything here who was not allowed to.
revoke all on all tables in schema onward from public;
revoke all on all sequences in schema onward from public;
revoke all on all functions in schema onward from public;

alter table onward.job enable row level security;
alter table onward.key enable row level security;
alter table onward.history enable row level security;
alter table onward.history_done enable row level security;
alter table onward.history_failed enable row level security;
alter table onward.history_day_other enable row level security;
alter table onward.archive_days enable row level security;
alter table onward.archive_rows enable row level security;
alter table onward.log enable row level security;
alter table onward.queue enable row level security;
alter table onward.lane enable row level security;
alter table onward.place enable row level security;
alter table onward.grip enable row level security;
alter table onward.worker enable row level security;
alter table onward.leader enable row level security;
alter table onward.identity enable row level security;
alter table onward.migration enable row level security;

-- Let a role add jobs and take them back, by the two functions above and in no other way.
create function onward.allow_producer(role name) returns void
  language plpgsql
as $$
begin
  execute format('grant usage on schema %s to %I', (select relnamespace::regnamespace from pg_class
                                                     where oid = 'onward.job'::regclass), role);
  execute format('grant execute on function onward.enqueue, onward.cancel to %I', role);
end $$;

-- Let a role work: run jobs, lead, operate. It needs this again after a migration.
create function onward.allow_worker(role name) returns void
  language plpgsql
as $$
declare
  home regnamespace := (select relnamespace from pg_class where oid = 'onward.job'::regclass);
  part name;
begin
  execute format('grant usage on schema %s to %I', home, role);
  execute format('grant select, insert, update, delete on all tables in schema %s to %I', home, role);
  execute format('grant usage, select, update on all sequences in schema %s to %I', home, role);
  execute format('grant execute on all functions in schema %s to %I', home, role);
  for part in select relname from pg_class where relnamespace = home and relkind in ('r', 'p') loop
    execute format('drop policy if exists %I on %s.%I', 'worker_' || role, home, part);
    execute format('create policy %I on %s.%I to %I using (true) with check (true)', 'worker_' || role, home, part, role);
  end loop;
end $$;

revoke all on function onward.allow_producer, onward.allow_worker from public;
