-- Who may do what. It comes last, so that it holds for all that there is. A step that comes after it has to see to its own, but
-- for those who have been allowed to work, to serve or to add jobs: they are allowed again whenever steps have been applied.

-- Who may use the server, and what they have changed (S2, S5): onward.engine.access has the fields. Out of reach for producers and
-- workers. Not in columns of type uuid and json: what is kept is given back letter by letter.
create table onward.token (
  id           text        collate "C" primary key,
  name         text        not null,
  digest       text        not null,
  role         text        not null,
  permissions  text[]      not null,
  queues       text[],
  orgs         text[],
  created_at   timestamptz not null,
  created_by   text        not null,
  expires_at   timestamptz,
  last_used_at timestamptz,
  revoked_at   timestamptz
);

-- Removed with its token.
create table onward.session (
  digest       text        collate "C" primary key,
  token_id     text        collate "C" not null references onward.token on delete cascade,
  created_at   timestamptz not null,
  last_seen_at timestamptz not null,
  expires_at   timestamptz not null
);

create index session_token on onward.session (token_id);
create index session_expires on onward.session (expires_at);

create table onward.audit (
  no         bigint      generated always as identity primary key,
  id         text        collate "C" not null,
  at         timestamptz not null,
  actor      text        collate "C" not null,
  role       text        not null,
  action     text        not null,
  target     text        collate "C" not null,
  filter     text,
  count      bigint,
  orgs       text[],
  request_id text        not null,
  detail     text
);

create unique index audit_id on onward.audit (id);
create index audit_at on onward.audit (at);
create index audit_actor on onward.audit (actor, no);
create index audit_target on onward.audit (target, no);

-- Remove old records, some at a time; returns how many. Who may call this may not delete: 30 days stay, whatever is asked, and by
-- the database's clock.
create function onward.prune_audit(kept interval, max_records integer) returns integer
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  pruned integer;
begin
  delete from onward.audit
   where no in (select no from onward.audit
                 where at < clock_timestamp() - greatest(kept, interval '30 days') order by at limit max_records);
  get diagnostics pruned = row_count;
  return pruned;
end $$;

-- Write the record of a change by filter, when it has ended (A5), and answer whether it is new. A worker runs such changes and may
-- write no record: so the record is the one that the job was accepted with, and the worker gives the count alone. The job may have been
-- cancelled meanwhile, and is history then.
create function onward.record_operation(operation uuid, record text, changed bigint, now timestamptz) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  insert into onward.audit (at, id, actor, role, action, target, filter, count, orgs, request_id, detail)
  select coalesce(record_operation.now, clock_timestamp()), r.value ->> 'id', r.value ->> 'actor', r.value ->> 'role',
         r.value ->> 'action', coalesce(r.value ->> 'target', ''), r.value ->> 'filter', changed,
         case when json_typeof(r.value -> 'orgs') = 'array' then array(select json_array_elements_text(r.value -> 'orgs')) end,
         coalesce(r.value ->> 'request_id', ''), r.value ->> 'detail'
    from (select j.payload from onward.job j
           where j.id = operation and starts_with(j.type, 'onward.') and j.queue = 'onward/operations'
          union all
          select h.payload from onward.history h
           where h.id = operation and starts_with(h.type, 'onward.') and h.queue = 'onward/operations'
           limit 1) accepted
   cross join lateral (select accepted.payload -> 'plan' -> 'audit' as value) r
   where r.value ->> 'id' = record
  on conflict (id) do nothing;
  return found;
end $$;

-- Refuse a caller that does not own the schema: its grants would give nothing, with a mere warning.
create function onward.check_owner() returns void
  language plpgsql
as $$
declare
  owner oid := (select relowner from pg_class where oid = 'onward.job'::regclass);
begin
  if not pg_has_role(owner, 'usage') then
    raise exception 'only % may allow roles here, and you are %', owner::regrole, current_user::regrole
      using errcode = 'insufficient_privilege';
  end if;
end $$;

-- Let a role add jobs, by enqueue and in no other way. May it cancel, then jobs that it has added: see is_own_job.
create function onward.allow_producer(role name, may_cancel boolean default false) returns void
  language plpgsql
as $$
begin
  perform onward.check_owner();
  execute format('grant usage on schema %s to %I', (select relnamespace::regnamespace from pg_class
                                                     where oid = 'onward.job'::regclass), role);
  execute format('grant execute on function onward.enqueue to %I', role);
  if may_cancel then
    execute format('grant execute on function onward.cancel to %I', role);
  end if;
end $$;

-- Let a role work: run jobs, lead, operate.
--
-- To make a policy, the table is needed for itself alone, and as long as this waits for it, everybody waits behind. So one that is
-- there is left, and it does not wait for long: less than the second after which the server looks for a deadlock. A policy is known
-- by its role. Its name is for people, and begins with the role's number, since names are cut and roles are renamed.
--
-- Days of the history are reached through the history. What somebody else has added here is for them to give.
create function onward.allow_worker(role name) returns void
  language plpgsql
  set lock_timeout = '500ms'
as $$
declare
  own_schema regnamespace := (select relnamespace from pg_class where oid = 'onward.job'::regclass);
  whose      oid := coalesce((select r.oid from pg_roles r where r.rolname = role), 0);  -- 0: public
  privilege  text;
  part       regclass;
  holder     text;
begin
  perform onward.check_owner();
  -- Of two that give leave for one thing at once, or beside a migration, the server would refuse one.
  lock table onward.migration in share row exclusive mode;
  for privilege in
    select format('usage on schema %s', own_schema)
    union all
    select format(case relkind when 'S' then 'usage, select, update on sequence %s'
                               else case when relname in ('migration', 'identity') then 'select'
                                         when relname = 'claim_gate' then 'select, update'
                                         else 'select, insert, update, delete' end || ' on table %s' end, oid::regclass)
      from pg_class where relnamespace = own_schema and relkind in ('r', 'p', 'v', 'S') and relname !~ '^history_day_[0-9]{8}$'
       and relname not in ('token', 'session', 'audit', 'audit_no_seq') and pg_has_role(relowner, 'usage')
    union all
    select format('execute on routine %s', oid::regprocedure)
      from pg_proc where pronamespace = own_schema and pg_has_role(proowner, 'usage')
       and proname not in ('allow_producer', 'allow_worker', 'allow_server', 'check_owner', 'prune_audit')
  loop
    execute format('grant %s to %I', privilege, role);
  end loop;
  for part in
    select oid from pg_class where relnamespace = own_schema and relkind in ('r', 'p') and relname !~ '^history_day_[0-9]{8}$'
       and relname not in ('token', 'session', 'audit') and pg_has_role(relowner, 'usage')
  loop
    continue when exists (select from pg_policy where polrelid = part and whose = any (polroles) and polname ~ '^worker_[0-9]+_');
    execute format('create policy %I on %s to %I using (true) with check (true)',
                   format('worker_%s_%s', whose, role)::name, part, role);
  end loop;
exception when lock_not_available or deadlock_detected then
  holder := (select concat_ws(' ', 'session', a.pid, nullif(a.application_name, ''))
               from pg_locks l
               join pg_database d on d.oid = l.database and d.datname = current_database()
               join pg_stat_activity a on a.pid = l.pid and a.pid <> pg_backend_pid()
              where l.relation = part and l.granted
              order by a.xact_start
              limit 1);
  raise exception 'role % was not allowed to work: % holds %; end that, or try again afterwards',
    role, coalesce(holder, 'another session'), coalesce(part::text, own_schema::text) using errcode = 'lock_not_available';
end $$;

-- Let a role serve: all that a worker may, and keep tokens, sessions and records. Records are added and read, never changed; old ones
-- are removed by prune_audit.
create function onward.allow_server(role name) returns void
  language plpgsql
  set lock_timeout = '500ms'
as $$
declare
  whose  oid := coalesce((select r.oid from pg_roles r where r.rolname = role), 0);  -- 0: public
  policy record;
begin
  perform onward.allow_worker(role);
  execute format('grant select, insert, update, delete on onward.token, onward.session to %I', role);
  execute format('grant select, insert on onward.audit to %I', role);
  execute format('grant execute on function onward.prune_audit to %I', role);
  for policy in
    select * from (values
      ('onward.token'::regclass,   'server',        'all',    'using (true) with check (true)'),
      ('onward.session'::regclass, 'server',        'all',    'using (true) with check (true)'),
      ('onward.audit'::regclass,   'server',        'select', 'using (true)'),
      ('onward.audit'::regclass,   'server_insert', 'insert', 'with check (true)')) p (part, kind, command, rule)
  loop
    continue when exists (select from pg_policy where polrelid = policy.part and whose = any (polroles)
                             and polname ~ format('^%s_[0-9]+_', policy.kind));
    execute format('create policy %I on %s for %s to %I %s', format('%s_%s_%s', policy.kind, whose, role)::name, policy.part,
                   policy.command, role, policy.rule);
  end loop;
end $$;

-- Nobody but the owner sees or does anything here who was not allowed to.
do $$
declare
  own_schema regnamespace := (select relnamespace from pg_class where oid = 'onward.job'::regclass);
  part       regclass;
begin
  execute format('revoke all on all tables in schema %s from public', own_schema);
  execute format('revoke all on all sequences in schema %s from public', own_schema);
  execute format('revoke all on all functions in schema %s from public', own_schema);
  for part in select oid from pg_class where relnamespace = own_schema and relkind in ('r', 'p') loop
    execute format('alter table %s enable row level security', part);
  end loop;
end $$;
