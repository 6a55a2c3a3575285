-- What happens to jobs, recorded while somebody listens. docs/explain/events.md has the reasons.
--
-- The triggers are always there. Whether they do anything is asked once for each statement: to make them when somebody begins to
-- listen would need a lock that waits for every open transaction which has touched a job, and that every other waits behind.

create table onward.event (
  xid       xid8        not null default pg_current_xact_id(),  -- by which it is known from when on an event can be seen
  no        bigint      not null generated always as identity,
  at        timestamptz not null,
  event     text        collate "C" not null,
  queue     text        collate "C" not null,
  id        uuid        not null,
  type      text        not null,
  org_id    text,
  attempts  integer     not null,
  number    bigint,                                             -- of progress, how much; of a retry, in how many microseconds
  message   text,                                               -- who runs it, what it said, its result, or why it failed
  traceback text,
  primary key (xid, no)
) with (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

create table onward.event_log (
  one            boolean     primary key default true check (one),
  always         boolean     not null default false,        -- recorded whether or not somebody listens
  max_events     bigint      not null default 10000 check (max_events >= 1),
  listened_until timestamptz not null default '-infinity',  -- somebody listens until then at least
  is_complete    boolean     not null default false,        -- nobody writes any longer who began before it was switched on
  complete_since pg_snapshot not null default '1:1:',       -- whatever this does not see is recorded
  trimmed_xid    xid8        not null default '0',          -- of the transactions up to this one, not all events are there
  horizon        xid8        not null default '0',          -- those before this one may be trimmed: they had ended some time ago
  horizon_at     timestamptz not null default '-infinity',
  pruned_at      timestamptz not null default '-infinity'   -- jobs that ended until then have been pruned, some of them or all
) with (fillfactor = 20);

insert into onward.event_log default values;

-- How far events have been read for something that must hear of each, and who does so.
create table onward.event_cursor (
  name   text        collate "C" primary key,
  cursor text        not null,
  holder text        not null,
  until  timestamptz not null
) with (fillfactor = 50);

-- Whether events are recorded: they are, if it has been called. A sequence, because a change of it is seen at once by everybody,
-- in whatever transaction they are.
create sequence onward.event_switch;

-- Say whether events are recorded. For those who add jobs, and say so of each: if they are, it is checked. A condition of a trigger
-- that looks at nothing but the row costs a lone job a tenth less.
create function onward.is_recording() returns boolean
  language sql volatile
  return pg_sequence_last_value('onward.event_switch'::regclass) is not null;

-- Say whether events are recorded. It is not immutable, and called so on purpose: the condition of a trigger is simplified once
-- for each statement, and this with it, instead of being asked for each row. For conditions of triggers only: a plan that is kept
-- would keep the answer. With the owner's rights, for whoever changes a job may have none here; and it names nothing that a
-- search path could lead elsewhere.
create function onward.is_recording_in_trigger() returns boolean
  language plpgsql immutable security definer
as $$
begin
  return pg_catalog.pg_sequence_last_value('onward.event_switch'::pg_catalog.regclass) is not null;
end $$;

-- Wake those who listen, at most every 20 ms from one connection: each notice makes commits wait for each other. The last of a
-- burst is found by looking again, which who was woken does.
create function onward.notify_event_listeners(own_schema name) returns void
  language plpgsql
as $$
declare
  turn text := floor(date_part('epoch', clock_timestamp()) * 50)::bigint::text;
begin
  if current_setting(own_schema || '.notified_at', true) is distinct from turn
     and current_setting(own_schema || '.notify', true) is distinct from 'off' then  -- see send_notice()
    perform set_config(own_schema || '.notified_at', turn, false);
    perform pg_notify(own_schema || '.events', '*');
  end if;
end $$;

create function onward.check_inserted_job() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform onward.validate_job(new);
  if onward.is_recording() and new.ready_at is not null and new.lease_until is null then
    insert into onward.event (at, event, queue, id, type, org_id, attempts)
    values (new.updated_at, 'waiting', new.queue, new.id, new.type, new.org_id, new.attempts);
    perform onward.notify_event_listeners(tg_table_schema);
  end if;
  return null;
end $$;

create function onward.record_job_event() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  status constant text := onward.status_of(new.ready_at, new.next_run_at, new.lease_until, new.started_at);
  before constant text := onward.status_of(old.ready_at, old.next_run_at, old.lease_until, old.started_at);
begin
  if status = before then
    if (new.progress, new.progress_message) is not distinct from (old.progress, old.progress_message) then
      return null;
    end if;
    insert into onward.event (at, event, queue, id, type, org_id, attempts, number, message)
    values (new.updated_at, 'progress', new.queue, new.id, new.type, new.org_id, new.attempts, new.progress, new.progress_message);
  elsif status = 'pending' then
    -- Who comes back to the line after its lease has run out has stalled.
    if old.lease_until <= new.updated_at then
      insert into onward.event (at, event, queue, id, type, org_id, attempts)
      values (new.updated_at, 'stalled', new.queue, new.id, new.type, new.org_id, new.attempts);
    end if;
    insert into onward.event (at, event, queue, id, type, org_id, attempts)
    values (new.updated_at, 'waiting', new.queue, new.id, new.type, new.org_id, new.attempts);
  elsif status = 'running' then
    insert into onward.event (at, event, queue, id, type, org_id, attempts, message)
    values (new.updated_at, 'active', new.queue, new.id, new.type, new.org_id, new.attempts, new.worker_id);
  elsif status = 'scheduled' and before = 'running' and new.attempts = old.attempts then
    -- One that was put off by its own handler has its attempt back.
    insert into onward.event (at, event, queue, id, type, org_id, attempts, number)
    values (new.updated_at, 'retry', new.queue, new.id, new.type, new.org_id, new.attempts, onward.to_micros(new.next_run_at - new.updated_at));
  else
    return null;
  end if;
  perform onward.notify_event_listeners(tg_table_schema);
  return null;
end $$;

create function onward.record_end_event() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into onward.event (at, event, queue, id, type, org_id, attempts, message, traceback)
  values (new.completed_at, case new.status when 'dead_letter' then 'failed' else new.status end, new.queue, new.id, new.type, new.org_id, new.attempts,
          case new.status when 'completed' then new.result::text else new.last_error end,
          case when new.status in ('failed', 'dead_letter') then new.errors -> -1 ->> 'traceback' end);
  perform onward.notify_event_listeners(tg_table_schema);
  return null;
end $$;

create trigger check_job after insert on onward.job for each row when (not new.skip_checks)
  execute function onward.check_inserted_job();
create trigger record_change after update on onward.job for each row when (onward.is_recording_in_trigger())
  execute function onward.record_job_event();
create trigger record_end after insert on onward.history for each row when (onward.is_recording_in_trigger())
  execute function onward.record_end_event();

-- Have events recorded for a while; answer whether it must be waited for those who began to write before.
create function onward.listen(now bigint, lease bigint) returns boolean
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  now_at    timestamptz := coalesce(onward.to_timestamp(listen.now), clock_timestamp());
  must_wait boolean;
begin
  update onward.event_log l
     set listened_until = greatest(l.listened_until, now_at + onward.to_interval(listen.lease)),
         is_complete = l.is_complete and (select s.is_called from onward.event_switch s)
  returning not l.is_complete into must_wait;
  if must_wait then perform setval('onward.event_switch', 1, true); end if;
  return must_wait;
end $$;

-- Stop recording where nobody listens any longer, and let go of events beyond those that are kept; answer whether there are more
-- of them. Only of transactions that had ended at a look some time ago: whoever listens has heard of them since.
create function onward.trim_events(now bigint, max_rows integer) returns boolean
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := coalesce(onward.to_timestamp(trim_events.now), clock_timestamp());
  log    onward.event_log;
  oldest record;
  gone   record;
begin
  select * into log from onward.event_log for update skip locked;
  if not found then return false; end if;
  if not log.always and log.listened_until < now_at and (select s.is_called from onward.event_switch s) then
    perform setval('onward.event_switch', 1, false);
    update onward.event_log set is_complete = false;
  end if;
  select e.xid, e.no into oldest from onward.event e order by e.xid desc, e.no desc offset log.max_events limit 1;
  if not found then return false; end if;
  with gone as (
    delete from onward.event e
     where e.ctid = any (array(
             select o.ctid from onward.event o
              where o.xid < log.horizon and (o.xid, o.no) <= (oldest.xid, oldest.no)
              order by o.xid, o.no limit max_rows))
    returning e.xid)
  select count(*) as count, max(g.xid) as newest into gone from gone g;
  update onward.event_log l
     set trimmed_xid = greatest(l.trimmed_xid, gone.newest),
         horizon = case when l.horizon_at < now_at - interval '5 seconds' then pg_snapshot_xmin(pg_current_snapshot())
                        else l.horizon end,
         horizon_at = case when l.horizon_at < now_at - interval '5 seconds' then now_at else l.horizon_at end;
  return gone.count = max_rows;
end $$;
