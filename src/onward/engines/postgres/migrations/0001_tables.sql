-- The tables. Needs PostgreSQL 14. docs/explain/postgres.md has the reasons at length.
--
-- Live jobs are in one small table, `job`; a job that ends moves to `history` in the statement that ends it. No index of `job`
-- and no predicate of one names a column that a claim, a start or a heartbeat changes, so those updates stay heap-only.

create function onward.to_timestamp(micros bigint) returns timestamptz
  language sql stable strict parallel safe
  return timestamptz 'epoch' + micros * interval '1 microsecond';

-- The moment at which a job is added. Its transaction has a number before: by that, whoever moves the watermark knows of jobs that
-- cannot be seen yet, however long they have to wait for somebody else on their way.
create function onward.enqueue_time(now bigint) returns timestamptz
  language sql volatile
  return coalesce(onward.to_timestamp(now), case when pg_current_xact_id() is not null then clock_timestamp() end);

create function onward.to_interval(micros bigint) returns interval
  language sql immutable strict parallel safe
  return micros * interval '1 microsecond';

create function onward.to_micros(value timestamptz) returns bigint
  language sql immutable strict parallel safe
  return (extract(epoch from value) * 1000000)::bigint;

create function onward.to_micros(value interval) returns bigint
  language sql immutable strict parallel safe
  return (extract(epoch from value) * 1000000)::bigint;

-- Rules for one value of an ended job are rules of its type. Of a live one they are not: to make them ready for a statement is a
-- thirtieth of what a lone job costs, and who adds one has been through them before. See validate_job.
create domain onward.non_negative as integer check (value >= 0);
create domain onward.positive as bigint check (value >= 1);
create domain onward.percent as smallint check (value between 0 and 100);
create domain onward.job_priority as integer check (value between 0 and 1000000);
create domain onward.job_type as text check (length(value) between 1 and 255);
-- What other languages can write: Python's years end with 9999.
create domain onward.portable_timestamp as timestamptz check (value between '0001-01-02 00:00 UTC' and '9999-12-30 00:00 UTC');

-- Say what status a live job has: what is there of it says so, and there is nothing that could say otherwise.
create function onward.status_of(
  ready_at timestamptz, next_run_at timestamptz, lease_until timestamptz, started_at timestamptz
) returns text
  language sql immutable parallel safe
  return case when ready_at is null then case when next_run_at is null then 'blocked' else 'scheduled' end
              when lease_until is null then 'pending' when started_at is null then 'claimed' else 'running' end;

-- Refuse a job that is not ready, and waits for neither its time nor others. The index asks it of those that are not ready; a check
-- would be asked of each.
create function onward.is_waiting(next_run_at timestamptz, pending_dependencies integer) returns boolean
  language plpgsql immutable parallel safe
as $$
begin
  if num_nonnulls(next_run_at, pending_dependencies) = 0 then
    raise exception 'no job can be like that: one that is not ready (ready_at) has next_run_at or pending_dependencies'
      using errcode = 'check_violation';
  end if;
  return true;
end $$;

create sequence onward.job_seq;

-- Draw the number of a claim: milliseconds since 1970, and 21 random bits. It is not counted: a store that has lost recent commits
-- (fail-over to an asynchronous standby, restore) repeats its seqs and counts, and a worker from before would record its outcome for
-- another job. The time makes later claims of a job compare higher; the random part makes the number unique even where a clock was
-- set back. random() is enough for that: each backend seeds it from the system's strong source. A strong draw for each claim took
-- 5 us. One number for each claim statement is enough: a statement claims a job once.
create function onward.new_claim_no() returns bigint
  language sql volatile
  return ((date_part('epoch', clock_timestamp()) * 1000)::bigint << 21) | (random() * 2097151)::bigint;

create table onward.job (
  seq                  bigint      primary key default nextval('onward.job_seq'),
  claim_no             bigint      not null default 0,       -- the fence: see new_claim_no
  updated_at           timestamptz not null default clock_timestamp(),
  created_at           timestamptz not null default clock_timestamp(),
  id                   uuid        not null default gen_random_uuid(),
  max_attempts         bigint      not null default 5,
  priority             integer     not null default 0,
  attempts             integer     not null default 0,
  crashes              integer     not null default 0,
  has_permit           boolean     not null default false,   -- it has a row in `concurrency_permit`
  suspect              boolean     not null default false,   -- its lease ran out in two runs in a row: runs alone in a child
  was_lost             boolean     not null default false,   -- its lease has run out in its last run
  lease_until          timestamptz,
  ready_at             timestamptz default onward.enqueue_time(null),  -- null: not in the claim index, for its time has not come
  lease                interval,
  claimed_at           timestamptz,
  started_at           timestamptz,
  next_run_at          timestamptz,
  start_by             timestamptz,
  progress             smallint,
  queue                text        collate "C" not null default 'default',
  type                 text        not null,
  payload              json        not null default '{}',
  org_id               text,
  worker_id            text,
  idempotency_key      text,
  key_digest           bytea,
  dedupe_key           text,
  dedupe_digest        bytea,
  backoff              json,                                 -- null: 1 s doubling up to 60 s
  last_error           text,
  errors               jsonb,                                -- array of failed attempts
  progress_message     text,
  batch                text        collate "C",
  pending_dependencies integer,                              -- jobs of its batch yet to end; null: it has named none
  on_dependency_failure text,                                -- what if one of those does not complete
  has_dependents       boolean,                              -- another waits for it
  trace                text,                                 -- headers of trace context, as JSON
  skip_checks          boolean     not null default false,   -- when it comes: true is said by who has seen to it that there is no need
  producer             text,                                 -- the role that added it by the SQL API, and may cancel it there
  check (lease_until is null or worker_id is not null)   -- read anew for each statement, so there is no more: see validate_job
)
-- More than half of each page is left free, so that the new version of a claimed row finds room beside the old one: measured, 96 % of
-- claims are heap-only then, and 19 % in full pages. Rows come and go by the thousand, and a few dead ones in front of a
-- claim cost it more than vacuuming costs: so vacuum early, by number more than by share, and without pausing.
with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
      autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);

create unique index job_id on onward.job (id);
create index job_claim on onward.job (queue, priority desc, ready_at, seq) where ready_at is not null and not suspect;
create index job_suspect on onward.job (queue, ready_at, seq) where ready_at is not null and suspect;
create index job_promote on onward.job (next_run_at, seq) where next_run_at is not null;
create index job_later on onward.job (queue, onward.is_waiting(next_run_at, pending_dependencies)) where ready_at is null;
create index job_batch on onward.job (batch, seq) where batch is not null;
create index job_expire on onward.job (start_by) where start_by is not null;
-- Keys of any length: only their digests are indexed.
create unique index job_dedupe on onward.job (dedupe_digest) where dedupe_digest is not null;

-- Idempotency keys hold for as long as their job is kept, live or not, so they have a place of their own (O4).
create table onward.key (
  digest   bytea primary key,
  id       uuid  not null,
  queue    text  collate "C" not null,
  producer text                                 -- as in `job`; kept here for as long as the key
);

-- Ended jobs. Completed and cancelled ones are kept for a time and then go by the day; failed ones stay until purged.
create table onward.history (
  seq              bigint      not null,
  claim_no         bigint      not null,
  created_at       timestamptz not null,
  updated_at       timestamptz not null,
  completed_at     timestamptz not null,
  next_run_at      onward.portable_timestamp,
  start_by         onward.portable_timestamp,
  claimed_at       timestamptz,
  started_at       timestamptz,
  id               uuid        not null,
  max_attempts     onward.positive not null,
  priority         onward.job_priority not null,
  attempts         onward.non_negative not null,
  crashes          integer     not null,
  progress         onward.percent,
  queue            text        collate "C" not null,
  status           text        collate "C" not null,
  type             onward.job_type not null,
  payload          json        not null,
  org_id           text,
  worker_id        text,
  idempotency_key  text,
  key_digest       bytea,
  dedupe_key       text,
  dedupe_digest    bytea,
  backoff          json,
  last_error       text,
  errors           jsonb,
  progress_message text,
  batch            text        collate "C",
  result           json,
  check (result is null or status = 'completed'),
  check (last_error is not null or status in ('completed', 'cancelled'))
-- There is no part for any status but those four.
) partition by list (status);

create table onward.history_done partition of onward.history for values in ('completed', 'cancelled')
  partition by range (completed_at);
create table onward.history_failed partition of onward.history for values in ('failed', 'dead_letter');
-- Days for which the leader has made no partition, because there was none to make it.
create table onward.history_day_other partition of onward.history_done default;

-- The replica identity of each part: without one, a publication of all tables (Debezium, a logical upgrade) makes every update and
-- delete fail. Not `full`: for that a subscriber compares all columns, and json has no equality.
create unique index history_seq on onward.history (seq, status, completed_at);
create index history_id on onward.history (id);
create index history_batch on onward.history (batch, seq) where batch is not null;
create index history_prune on onward.history (queue, status, completed_at);

-- Ended jobs that their queue no longer keeps, for a while longer: in nobody's way, and there to be looked up. Days that are
-- over for all of their jobs come here as they are. Where a queue keeps its jobs for a shorter time than others do, they come
-- one by one, with the time until which they stay.
create table onward.archive_days (like onward.history including constraints) partition by range (completed_at);
create unique index archive_seq on onward.archive_days (seq, status, completed_at);
create index archive_id on onward.archive_days (id);
create index archive_batch on onward.archive_days (batch, seq) where batch is not null;
create index archive_prune on onward.archive_days (queue, status, completed_at);

create table onward.archive_rows (like onward.history including constraints, until timestamptz not null);
create unique index archive_row_seq on onward.archive_rows (seq);
alter table onward.archive_rows replica identity using index archive_row_seq;
create index archive_row_id on onward.archive_rows (id);
create index archive_row_until on onward.archive_rows (until);

create view onward.archive as
select seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at, started_at, id, max_attempts, priority,
       attempts, crashes, progress, queue, status, type, payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key,
       dedupe_digest, backoff, last_error, errors, progress_message, batch, result
  from onward.archive_days
union all
select seq, claim_no, created_at, updated_at, completed_at, next_run_at, start_by, claimed_at, started_at, id, max_attempts, priority,
       attempts, crashes, progress, queue, status, type, payload, org_id, worker_id, idempotency_key, key_digest, dedupe_key,
       dedupe_digest, backoff, last_error, errors, progress_message, batch, result
  from onward.archive_rows;

create table onward.log (
  seq  bigint      not null,
  no   bigint      generated always as identity,
  at   timestamptz not null,
  line text        not null,
  primary key (seq, no)
);

-- A queue as it was told to be. One that was told nothing needs no row: it is there by its lanes.
create table onward.queue (
  name                 text        collate "C" primary key,
  paused               boolean     not null default false,
  pause_reason         text,
  paused_by            text,
  paused_at            timestamptz,
  weight               bigint      not null default 1 check (weight >= 1),
  global_concurrency          bigint      check (global_concurrency >= 1),
  rate_count           bigint,
  rate_period          interval,
  rate_burst           bigint,
  spacing              interval,                      -- of the rate: from one permit to the next
  credit               interval,                      -- what a late taker may catch up
  reach                interval,                      -- how far a burst reaches ahead
  next_permit_at       timestamptz not null default '-infinity',
  lease                interval,
  max_attempts         bigint      check (max_attempts >= 1),
  backoff              json,
  keep_completed       interval    default '7 days',
  keep_completed_count bigint,
  keep_failed          interval,
  keep_failed_count    bigint,
  keep_cancelled       interval    default '7 days',
  keep_archived        interval    default '30 days',  -- from then on; 0: not at all, null: until purged
  created_at           timestamptz not null default clock_timestamp(),
  check (num_nulls(rate_count, rate_period, rate_burst, spacing, credit, reach) in (0, 6))
) with (fillfactor = 50);

create index queue_rated on onward.queue (name) where spacing is not null;

-- What a claim looks at: where jobs may be ready. A lane is a queue and a priority. It may be there for nothing; it is never
-- missing where a job could be claimed. Whoever adds a job adds the lane if it sees none, so there may be two: nobody waits
-- for somebody else's transaction over it.
create table onward.lane (
  queue    text        collate "C" not null,
  priority integer     not null,
  low_mark timestamptz,                               -- nothing to claim lies before it, by ready_at; null: the watermark will do
  moved_at timestamptz not null default '-infinity',  -- when the low mark was
  closing  xid8,                                      -- on its way out: whatever adds a job opens another
  is_sealed boolean    not null default false         -- `closing` is larger than the id of any transaction that saw the lane unmarked
-- Nearly all of each page is left free: while somebody's transaction stays open, no old version of a row goes, and those in
-- the same page cost a claim next to nothing.
) with (fillfactor = 10, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

create index lane_open on onward.lane (queue, priority desc);
alter table onward.lane replica identity full;

-- The moment before which there is nothing to claim in any lane that has no low mark of its own, in microseconds. It moves all the
-- time. A sequence, because that leaves no remains, however long somebody's transaction stays open.
create sequence onward.watermark;

-- The jobs that use up a queue's concurrency: a row each, so that those who end jobs need not wait for each other.
create table onward.concurrency_permit (
  seq   bigint primary key,
  queue text   collate "C" not null
);

create index concurrency_permit_queue on onward.concurrency_permit (queue);

-- Who holds what since when, a row for each claim of many jobs: by it, leases that have run out are found without an index
-- on them. It may name jobs that are held no longer; no held job is missing.
create table onward.lease_batch (
  until timestamptz not null,
  seqs  bigint[]    not null
-- A list of a thousand jobs is kept in the row, as it is: to compress it costs more than to write it.
) with (toast_tuple_target = 8160, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

create index lease_batch_until on onward.lease_batch (until);
alter table onward.lease_batch replica identity full;

-- Heartbeats for held jobs whose row another transaction had locked: that claim's lease holds until then, whatever the row says.
create table onward.deferred_heartbeat (
  seq      bigint      primary key,
  claim_no bigint      not null,
  until    timestamptz not null
);

create table onward.worker (
  id             text        primary key,
  hostname       text        not null,
  pool_size      integer     not null,
  version        text        not null,
  queues         text[]      not null,
  types          text[]      not null,
  started_at     timestamptz not null,
  last_heartbeat timestamptz not null,
  command        text                  -- 'quiet' or 'stop'; null: it claims jobs
) with (fillfactor = 50);

-- One row at most: the present or last term. Numbers only rise.
create table onward.leader (
  one       boolean     primary key default true check (one),
  number    bigint      not null,
  leader_id text        not null,
  until     timestamptz not null,
  renewed_at timestamptz not null default clock_timestamp()  -- later than now: the clock has gone back, and `until` means nothing
) with (fillfactor = 10);

-- Has no rows. Claims share a lock on it, and who changes settings takes it alone: see configure(). A table and not an advisory
-- lock, because to lock it needs a privilege here, and anyone who can connect can take any advisory lock.
create table onward.claim_gate (one boolean);
alter table onward.claim_gate replica identity full;

-- Keep settings as they are until the end of the transaction. Row share: a backup that reads all tables is in nobody's way.
create function onward.enter_claims() returns void
  language plpgsql
as $$
begin
  perform from onward.claim_gate for key share;
end $$;

-- The number of the cluster; '?' where the server does not give it: some managed ones restrict what reads its control file.
create function onward.cluster_identifier() returns text
  language plpgsql stable as $$
begin
  return (select c.system_identifier from pg_control_system() c);
exception when others then
  return '?';
end $$;

-- Where this store is: the cluster, the database and the schema by their own numbers. A dump that is restored, or a database made from
-- another as its template, has other ones; a promoted standby and a copy of the data directory have the same. With the owner's
-- rights, so that all roles get the same answer.
create function onward.current_home() returns text
  language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  return concat_ws('/', onward.cluster_identifier(),
                   (select d.oid from pg_database d where d.datname = current_database()),
                   (select c.relnamespace from pg_class c where c.oid = 'onward.job'::regclass));
end $$;

-- Say whether two homes are the same, as far as both are known: the owner may have been given the right to read the cluster's number
-- since, or have lost it.
create function onward.is_same_home(one text, other text) returns boolean
  language sql immutable parallel safe
  return substr(one, strpos(one, '/')) = substr(other, strpos(other, '/'))
         and (one = other or '?' in (split_part(one, '/', 1), split_part(other, '/', 1)));

-- The timeline of the server: a promotion and a point-in-time recovery begin a new one. Null on a standby, and where the server does
-- not give it: Aurora refuses all functions on its log unless wal_level is logical.
create function onward.current_timeline() returns text
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  return case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end;
exception when others then
  return null;
end $$;

-- By which a connection is known to lead to this store and to no other, and where the store was when somebody last said that its jobs
-- are to be run: see doctor --confirm-restore.
create table onward.identity (
  one      boolean primary key default true check (one),
  id       uuid    not null default gen_random_uuid(),
  home     text    not null default onward.current_home(),
  timeline text    default onward.current_timeline()
);

insert into onward.identity default values;

-- Record that the jobs of this store are to be run where it is now. With the owner's rights: workers may not write `identity`.
-- only_if_empty  unless there are jobs or schedules: nothing is repeated then, and nobody needs to be asked.
create function onward.confirm_home(only_if_empty boolean) returns void
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  update onward.identity set home = onward.current_home(), timeline = onward.current_timeline()
   where not only_if_empty or not (exists (select from onward.job) or exists (select from onward.schedule s where not s.paused));
end $$;

-- What serves changes made by hand. Triggers after the change and not before it, for those would read and lock every row that is
-- claimed; and one for both, so that a claim is looked at once.
--
-- Every statement of ours moves updated_at forward, and gives the permit back of a job that it takes from its worker. A heartbeat
-- changes lease_until only, and is no change.

-- Refuse what no job can be like. It is asked of what comes by hand, or changes by hand: all that we write ourselves has been through
-- the same rules, in Python or in the SQL API.
create function onward.validate_job(job onward.job) returns void language plpgsql as $$
declare
  days  constant tstzrange := '[0001-01-02 00:00 UTC, 9999-12-30 00:00 UTC]';  -- what other languages can write
  wrong constant text := case
    when job.type = '' or length(job.type) > 255 then 'type has 1 to 255 characters'
    when job.priority not between 0 and 1000000 then 'priority is from 0 to 1,000,000'
    when job.max_attempts < 1 then 'max_attempts is at least 1'
    when job.attempts < 0 then 'attempts is not negative'
    when job.crashes < 0 then 'crashes is not negative'
    when job.progress not between 0 and 100 then 'progress is from 0 to 100'
    when not days @> job.next_run_at or not days @> job.start_by then 'next_run_at and start_by are in the years 1 to 9999'
    when not days @> job.ready_at or not days @> job.created_at then 'ready_at and created_at are in the years 1 to 9999'
    when json_typeof(job.backoff) <> 'object' or job.backoff::jsonb @? any (array[
           '$.kind ? (@ != "fixed" && @ != "exponential")', '$.base ? (@.type() != "number" || @ <= 0)',
           '$.factor ? (@.type() != "number" || @ < 1)', '$.jitter ? (@.type() != "number" || @ < 0 || @ > 1)',
           '$.cap ? (@.type() != "null" && (@.type() != "number" || @ <= 0))']::jsonpath[]) then
      'backoff is an object: kind (fixed or exponential), base and cap (more than 0), factor (1 or more), jitter (0 to 1)'
    when jsonb_typeof(job.errors) <> 'array' or job.errors @? '$[*] ? (!exists(@.attempt ? (@.type() == "number")) ||
           !exists(@.at ? (@ like_regex "^[0-9]{4}-[0-9]{2}-[0-9]{2}T.*Z$")) ||
           !exists(@.error_type ? (@.type() == "string")) || !exists(@.message ? (@.type() == "string")))' then
      'errors is an array of objects: attempt, at, error_type, message'
    when job.lease_until is not null and job.ready_at is null then 'one that is held (lease_until) has ready_at'
    when job.lease_until is null and job.has_permit then 'one that nobody holds (lease_until) has no permit (has_permit)'
  end;
begin
  if wrong is not null then
    raise exception 'no job can be like that: %', wrong using errcode = 'check_violation';
  end if;
end $$;

-- With the owner's rights: whoever may change a job need not have any others.
create function onward.job_changed() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if old.has_permit and not new.has_permit then
    delete from onward.concurrency_permit where seq = old.seq;
  end if;
  -- A heartbeat is not looked at: over one odd job, all others of its worker would lose their leases.
  if new.lease_until is null or old.lease_until is null or new.lease_until = old.lease_until then
    perform onward.validate_job(new);
    update onward.job set updated_at = greatest(clock_timestamp(), old.updated_at + interval '1 microsecond')
     where seq = new.seq;
  end if;
  return null;
end $$;

create function onward.job_deleted() returns trigger language plpgsql as $$
begin
  delete from onward.concurrency_permit where seq = old.seq;
  return null;
end $$;

create function onward.history_changed() returns trigger language plpgsql as $$
begin
  update onward.history set updated_at = greatest(clock_timestamp(), old.updated_at + interval '1 microsecond')
   where seq = new.seq and status = new.status and completed_at = new.completed_at;
  return null;
end $$;

create trigger changed after update on onward.job for each row
  when (new.updated_at = old.updated_at)
  execute function onward.job_changed();
create trigger deleted after delete on onward.job for each row when (old.has_permit)
  execute function onward.job_deleted();
create trigger changed after update on onward.history for each row when (new.updated_at = old.updated_at)
  execute function onward.history_changed();

-- Live jobs, and the status of each.
create view onward.live as
select *, onward.status_of(ready_at, next_run_at, lease_until, started_at) as status from onward.job;

-- For people with a console: all jobs, and the simplified status (H6).
create view onward.jobs as
select id, queue, type, status,
       case when status in ('scheduled', 'blocked', 'pending') then 'queued'
            when status in ('claimed', 'running') then 'running'
            when status = 'completed' then 'success'
            else 'failed' end as simplified_status,
       priority, org_id, payload, attempts, max_attempts, crashes, worker_id, last_error, result, next_run_at, created_at,
       started_at, completed_at, updated_at
  from (select id, queue, type, status, priority, org_id, payload, attempts, max_attempts, crashes, worker_id, last_error,
               null::json as result, next_run_at, created_at, started_at, null::timestamptz as completed_at, updated_at
          from onward.live
        union all
        select id, queue, type, status, priority, org_id, payload, attempts, max_attempts, crashes, worker_id, last_error,
               result, next_run_at, created_at, started_at, completed_at, updated_at
          from onward.history) every;
