-- The first schema. Times are microseconds since 1970, UTC. Needs SQLite 3.37.
-- Tables are strict and JSON is checked: a value of another type, written by hand, is refused here. A worker could not read it.
--
-- One table holds live and finished jobs: partial indexes keep what is finished out of the way of what is not, and a row
-- that ends is rewritten in place instead of being moved. Index predicates name `status`, which a claim changes: SQLite has
-- no heap-only updates to lose by that, and a claim never walks over jobs that are running (docs/explain/sqlite.md).

create table onward_job (
  seq              integer primary key,
  id               text    not null,
  queue            text    not null,
  type             text    not null,
  status           text    not null,
  priority         integer not null,
  org_id           text,
  payload          text    not null,
  attempts         integer not null default 0 check (attempts >= 0),
  max_attempts     integer not null check (max_attempts >= 1),
  crashes          integer not null default 0,
  suspect          integer not null default 0,   -- its lease has run out in two runs in a row: runs alone in a child process
  was_lost         integer not null default 0,   -- its lease has run out in its last run
  backoff          text,                         -- JSON; null: 1 s doubling up to 60 s
  idempotency_key  text,
  key_digest       blob,
  dedupe_key       text,
  dedupe_digest    blob,
  next_run_at      integer,
  start_by         integer,
  -- The fence: the time and random bits, drawn for each claim. Not counted: a restored file would repeat the numbers for other jobs.
  claim_no         integer not null default 0,
  worker_id        text,
  lease_us         integer,
  lease_until      integer,
  created_at       integer not null,
  ready_at         integer,
  claimed_at       integer,
  started_at       integer,
  completed_at     integer,
  updated_at       integer not null,
  last_error       text,
  errors           text,                         -- JSON array of failed attempts
  progress         integer check (progress between 0 and 100),
  progress_message text,
  result           text,                         -- JSON
  -- Every status, and what must be there in it and nowhere else. Written as comparisons: for `in` with a list SQLite builds a
  -- table in memory at each insert, which made inserting twice as slow.
  check (case when status = 'pending'   then ready_at is not null and lease_until is null and completed_at is null
              when status = 'running'   then lease_until is not null and started_at is not null and completed_at is null
              when status = 'completed' then completed_at is not null and lease_until is null
              when status = 'claimed'   then lease_until is not null and completed_at is null
              when status = 'scheduled' then next_run_at is not null and lease_until is null and completed_at is null
              when status = 'blocked'   then lease_until is null and completed_at is null
              when status = 'failed' or status = 'dead_letter' or status = 'cancelled'
                                       then completed_at is not null and lease_until is null
              else false end),
  check (result is null or status = 'completed'),
  check (json_valid(payload)),
  check (backoff is null or json_valid(backoff)),
  check (errors is null or json_type(errors) = 'array')
) strict;

create unique index onward_job_id on onward_job (id);
create index onward_job_claim on onward_job (queue, priority desc, ready_at) where status = 'pending' and suspect = 0;
create index onward_job_suspect on onward_job (queue, ready_at) where status = 'pending' and suspect = 1;
create index onward_job_held on onward_job (queue) where status in ('claimed', 'running');
create index onward_job_promote on onward_job (next_run_at, queue) where status = 'scheduled';
create index onward_job_blocked on onward_job (queue) where status = 'blocked';
create index onward_job_expire on onward_job (start_by) where start_by is not null and completed_at is null;
create index onward_job_prune on onward_job (queue, status, completed_at) where completed_at is not null;
-- Keys of any length: only their digests are indexed. Finished jobs keep theirs for as long as they are kept (O4).
create unique index onward_job_key on onward_job (key_digest) where key_digest is not null;
create unique index onward_job_dedupe on onward_job (dedupe_digest) where dedupe_digest is not null and completed_at is null;

-- Every statement of ours moves updated_at forward; this serves changes made by hand. A heartbeat sets lease_until only
-- and is no change.
create trigger onward_job_touch after update of
  id, queue, type, status, priority, org_id, payload, attempts, max_attempts, crashes, suspect, backoff, idempotency_key,
  dedupe_key, next_run_at, start_by, worker_id, last_error, errors, progress, progress_message, result
on onward_job when new.updated_at <= old.updated_at
begin
  update onward_job
     set updated_at = max(old.updated_at + 1, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
   where seq = new.seq;
end;

create table onward_log (
  seq  integer not null,
  no   integer not null,
  at   integer not null,
  line text    not null,
  primary key (seq, no)
) strict, without rowid;

create trigger onward_job_delete_log after delete on onward_job
begin
  delete from onward_log where seq = old.seq;
end;

create table onward_queue (
  name                 text primary key,
  paused               integer not null default 0,
  pause_reason         text,
  paused_by            text,
  paused_at            integer,
  rate_count           integer,
  rate_period_us       integer,
  rate_burst           integer,
  next_permit_at       integer not null default 0,  -- limited queues: when the next job may start
  global_concurrency          integer,
  weight               integer not null default 1,
  lease_us             integer,
  max_attempts         integer,
  backoff              text,
  keep_completed_us    integer,
  keep_completed_count integer,
  keep_failed_us       integer,
  keep_failed_count    integer,
  keep_cancelled_us    integer,
  -- A claim looks at open queues only, so its cost does not grow with those that are paused, limited, full or empty.
  -- `open` may be 1 for nothing, and the claim that finds nothing sets it to 0; it is never 0 where a job could be claimed,
  -- unless `reopens_at` says from when on one can.
  open                 integer not null default 0,
  reopens_at           integer,
  created_at           integer not null,
  check (paused = 0 or open = 0),
  check ((rate_count is null) = (rate_period_us is null)),
  check ((rate_count is null) = (rate_burst is null))
) strict, without rowid;

create index onward_queue_open on onward_queue (name) where open = 1;
create index onward_queue_reopen on onward_queue (reopens_at) where reopens_at is not null;

create table onward_worker (
  id             text primary key,
  hostname       text    not null,
  pool_size      integer not null,
  version        text    not null,
  queues         text    not null,  -- JSON array
  types          text    not null,  -- JSON array
  started_at     integer not null,
  last_heartbeat integer not null,
  command        text                -- 'quiet' or 'stop'; null: it claims jobs
) strict, without rowid;

-- The file in which somebody last said that these jobs are to be run, by its inode: a copy or a restored file is another one.
create table onward_identity (
  one  integer primary key check (one = 1),
  home text    not null
);

-- One row at most: the present or last term. Numbers only rise.
create table onward_leader (
  one       integer primary key check (one = 1),
  number    integer not null,
  leader_id text    not null,
  until     integer not null,
  renewed_at integer not null  -- later than now: the clock has been set back, and `until` means nothing
) strict;

-- Who may use the server, and what they have changed (S2, S5): onward.engine.access has the fields. Lists are JSON arrays.
create table onward_token (
  id           text    primary key,
  name         text    not null,
  digest       text    not null,
  role         text    not null,
  permissions  text    not null,
  queues       text,
  orgs         text,
  created_at   integer not null,
  created_by   text    not null,
  expires_at   integer,
  last_used_at integer,
  revoked_at   integer
) strict, without rowid;

create table onward_session (
  digest       text    primary key,
  token_id     text    not null,
  created_at   integer not null,
  last_seen_at integer not null,
  expires_at   integer not null
) strict, without rowid;

create index onward_session_token on onward_session (token_id);
create index onward_session_expires on onward_session (expires_at);

create table onward_audit (
  no         integer primary key,
  id         text    not null,
  at         integer not null,
  actor      text    not null,
  role       text    not null,
  action     text    not null,
  target     text    not null,
  filter     text,
  count      integer,
  orgs       text,
  request_id text    not null,
  detail     text
) strict;

create unique index onward_audit_id on onward_audit (id);
create index onward_audit_at on onward_audit (at);
create index onward_audit_actor on onward_audit (actor);
create index onward_audit_target on onward_audit (target);

create trigger onward_audit_append_only before update on onward_audit
begin
  select raise(abort, 'audit records cannot be changed');
end;

-- For people with a console: times as text, and the simplified status (H6).
create view onward_jobs as
select id, queue, type, status,
       case when status in ('scheduled', 'blocked', 'pending') then 'queued'
            when status in ('claimed', 'running') then 'running'
            when status = 'completed' then 'success'
            else 'failed' end as simplified_status,
       priority, org_id, payload, attempts, max_attempts, crashes, worker_id, last_error, result,
       strftime('%Y-%m-%dT%H:%M:%fZ', next_run_at / 1e6, 'unixepoch') as next_run_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1e6, 'unixepoch') as created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1e6, 'unixepoch') as started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', completed_at / 1e6, 'unixepoch') as completed_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1e6, 'unixepoch') as updated_at
  from onward_job;
