-- Who may do what. It comes last, so that it holds for all that there is. A step that comes after it has to see to its own, but
-- for those who have been allowed to work or to add jobs: they are allowed again whenever steps have been applied.

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
       and pg_has_role(relowner, 'usage')
    union all
    select format('execute on routine %s', oid::regprocedure)
      from pg_proc where pronamespace = own_schema and pg_has_role(proowner, 'usage')
       and proname not in ('allow_producer', 'allow_worker', 'check_owner')
  loop
    execute format('grant %s to %I', privilege, role);
  end loop;
  for part in
    select oid from pg_class where relnamespace = own_schema and relkind in ('r', 'p') and relname !~ '^history_day_[0-9]{8}$'
       and pg_has_role(relowner, 'usage')
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
