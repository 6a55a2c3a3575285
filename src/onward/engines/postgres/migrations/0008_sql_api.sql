-- For everybody who speaks SQL: triggers, psql, PostgREST and Supabase clients, other languages.

-- Make an id: a UUID of version 7, so that ids made later sort later.
create function onward.new_id() returns uuid
  language sql volatile parallel safe
  return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
           substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1),
         'hex')::uuid;

alter table onward.job alter column id set default onward.new_id();

-- Shorten a key of any length to what an index can hold, as onward.keys.digest does. A null part is left out.
create function onward.digest(variadic parts text[]) returns bytea
  language sql immutable strict parallel safe
  return (select sha256(string_agg(int8send(octet_length(convert_to(p.part, 'UTF8'))::bigint) || convert_to(p.part, 'UTF8'),
                                   ''::bytea order by p.no))
            from unnest(parts) with ordinality p (part, no));

-- The role of the session, in a function that runs with the owner's rights: what SET ROLE says, else who has logged in.
create function onward.session_role() returns name
  language sql stable
  return coalesce(nullif(current_setting('role'), 'none')::name, session_user);

-- Say whether the session may know and cancel a job: one that its role has added, or a role of which it is a member; a worker any.
create function onward.is_own_job(producer text) returns boolean
  language sql stable
  return has_table_privilege(onward.session_role(), 'onward.job'::regclass, 'update')
         or exists (select from pg_roles r where r.rolname = producer and pg_has_role(onward.session_role(), r.oid, 'member'));

-- Add a job; answer its id, or that of the job that stands for it already. It is part of your transaction. Null: another role has
-- added the job that stands for it, and its id is not told, however the key was come by.
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
  size    bigint := octet_length(payload::text) + octet_length(concat(type, org_id, idempotency_key, dedupe_key));
  digest  bytea := case when idempotency_key is not null then onward.digest(type, org_id, idempotency_key) end;
  chosen  record;
  wrong   text;
begin
  wrong := case
    when type is null or btrim(type, E' \t\n\r\f\v') = '' then 'type must be a non-empty string'
    when starts_with(type, 'onward.') then 'type must not begin with ''onward.'': these are made by workers only'
    when starts_with(queue || '/', 'onward/') then 'queue must not be below ''onward/'': these are filled by workers only'
    when length(type) > 255 then 'type must be at most 255 characters'
    when payload is null then 'payload must be JSON: ''null'' is, NULL is not'
    when size > 10485760 then format('Job payload size %s MB exceeds limit of 10.0 MB', round(size / 1048576.0, 1))
    when payload @? '$.** ? (@ > 9007199254740992 || @ < -9007199254740992)' then
      'payload must have numbers within ±2^53: send larger ones as strings'
    when payload @? 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")' then
      'payload must not be nested deeper than 100 levels'
    when queue is null or length(queue) > 120 or queue !~ '^[a-z0-9_.-]+(/[a-z0-9_.-]+)*$' then
      'queue must be lower-case letters, digits, ''_'', ''.'', ''-'', in parts joined by ''/'', at most 120 characters'
    when priority is null or priority not between 0 and 1000000 then 'priority must be a whole number from 0 to 1,000,000'
    when delay is not null and run_at is not null then 'give delay or run_at, not both'
    when extract(epoch from delay) not between 0 and 36500 * 86400.0 then 'delay must be zero or more, and less than a hundred years'
    when extract(year from run_at at time zone 'UTC') not between 2 and 9898
      or extract(year from start_by at time zone 'UTC') not between 2 and 9898 then
      'run_at and start_by must be in one of the years 2 to 9898'
    when max_attempts < 1 then 'max_attempts must be at least 1'
    when idempotency_key = '' or dedupe_key = '' or org_id = '' then 'org_id and keys must not be empty: leave them out'
  end;
  if wrong is not null then
    raise exception '%', wrong using errcode = 'invalid_parameter_value';
  end if;
  if idempotency_key is null and dedupe_key is null then
    perform onward.enqueue_uniform(
      null, array[id], json_build_array(payload), queue, type, priority, org_id, onward.to_micros(delay), onward.to_micros(run_at),
      onward.to_micros(start_by), max_attempts::bigint, null::text, null::text, null::integer, null::text, null::text,
      channel, '*,@', onward.session_role());
    return id;
  end if;
  select e.enqueue_status as status, e.id::uuid as id into chosen from onward.enqueue_keyed(
    null, array[id::text], array[payload::text], array[queue], array[type], array[priority], array[org_id],
    array[onward.to_micros(delay)], array[onward.to_micros(run_at)], array[onward.to_micros(start_by)], array[max_attempts::bigint],
    array[null::text], array[null::text], array[null::integer], array[null::text], array[null::text], channel, '*,@',
    null, array[idempotency_key], array[digest], array[dedupe_key], array[onward.digest(dedupe_key)],
    array[null::bytea], array[null::bigint], array[null::bigint], onward.session_role()) e;
  if chosen.status = 'inserted' or onward.is_own_job(coalesce(
       (select j.producer from onward.job j where j.id = chosen.id),
       (select k.producer from onward.key k where k.digest = digest))) then
    return chosen.id;
  end if;
  return null;
end $$;

-- Take a job back that your role has added; answer whether it was there to be taken back.
create function onward.cancel(id uuid, reason text default 'cancelled') returns boolean
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  channel text := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.oid = 'onward.job'::regclass);
begin
  perform from onward.cancel_many(null, channel, array(select j.seq from onward.job j where j.id = cancel.id and onward.is_own_job(j.producer)),
                                  coalesce(reason, 'cancelled'), true);
  return found;
end $$;
