-- What we keep beside PGMQ's schema, which has no place for it and is not ours to change. Nothing of a message is here: whoever
-- drops this schema loses no message, no outcome and no count. Those are in the messages' own headers, under `onward`.

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
  until     timestamptz not null
) with (fillfactor = 10);

-- By which a connection is known to lead to this store and to no other.
create table onward.identity (
  one boolean primary key default true check (one),
  id  uuid    not null default gen_random_uuid()
);

insert into onward.identity default values;

-- What a queue is told to do, for Onward's workers. A queue without a row has the defaults.
create table onward.queue (
  name                 text     collate "C" primary key,
  paused               boolean  not null default false,
  pause_reason         text,
  paused_by            text,
  paused_at            timestamptz,
  lease                interval,                          -- null: as the worker asks
  max_attempts         bigint,                            -- null: 5
  backoff              text,                              -- null: 1 s doubling up to 60 s
  keep_completed       interval default interval '168 hours',
  keep_completed_count bigint,
  keep_failed          interval,
  keep_failed_count    bigint,
  keep_cancelled       interval default interval '168 hours'
);

-- Up to which moment a queue's archive has been looked through for messages that need not be kept, for each kind of end: what
-- others have archived stays, and is not looked at again and again.
create table onward.prune_watermark (
  queue        text        collate "C" not null,
  kind         text        collate "C" not null,
  pruned_until timestamptz not null,
  primary key (queue, kind)
);

-- What Onward's workers have taken, one row for all that one claim took from one queue. It says who runs a message, and lets a
-- leader find those whose worker has died. Not logged: after a crash of the server, messages come back by their visibility
-- timeout alone.
create unlogged table onward.lease_batch (
  id          bigint      generated always as identity primary key,
  queue       text        collate "C" not null,
  worker_id   text        not null,
  claimed_at  timestamptz not null,
  lease_until timestamptz not null,        -- when to look again; a message that is still held then has a later timeout
  msg_ids     bigint[]    not null,
  read_cts    integer[]   not null
);

create index lease_batch_lease_until on onward.lease_batch (lease_until);
create index lease_batch_queue on onward.lease_batch (queue);

-- Messages that wait for their time: PGMQ makes them visible by itself, but wakes nobody.
create table onward.due (
  queue   text        collate "C" not null,
  msg_id  bigint      not null,
  read_ct integer     not null,           -- read since: it waits no longer
  due_at  timestamptz not null,
  primary key (queue, msg_id)
);

create index due_next on onward.due (due_at);

-- Messages whose lease has run out in a run. After two such runs in a row one is a suspect: it runs alone in a child process until
-- it has shown that it was not the cause.
create table onward.suspect (
  queue   text    collate "C" not null,
  msg_id  bigint  not null,
  losses  integer not null default 1,     -- runs in a row that were lost
  crashes integer not null default 0,     -- child processes that died while it ran alone there
  primary key (queue, msg_id)
);

-- Who may use the server, and what they have changed (S2, S5): onward.engine.access has the fields. Not in columns of type
-- uuid and json: what is kept is given back letter by letter.
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
