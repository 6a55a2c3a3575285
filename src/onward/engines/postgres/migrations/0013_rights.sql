-- Who may do what. It comes last, so that it holds for all that there is; a step that comes after it has to see to its own.

-- Let a role add jobs and take them back, by enqueue and cancel and in no other way.
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

-- Nobody but the owner sees or does anything here who was not allowed to.
do $$
declare
  home regnamespace := (select relnamespace from pg_class where oid = 'onward.job'::regclass);
  part regclass;
begin
  execute format('revoke all on all tables in schema %s from public', home);
  execute format('revoke all on all sequences in schema %s from public', home);
  execute format('revoke all on all functions in schema %s from public', home);
  for part in select oid from pg_class where relnamespace = home and relkind in ('r', 'p') loop
    execute format('alter table %s enable row level security', part);
  end loop;
end $$;
