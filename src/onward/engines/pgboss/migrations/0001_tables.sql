-- What we keep beside pg-boss's schema, which has no place for it and is not ours to change: who works, who leads, and who holds
-- what until when. Whoever drops this schema loses none of pg-boss's jobs.

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

create table onward.queue (
  name  text     primary key,
  lease interval
);

-- What Onward's workers have taken, one row for all that one claim took from one queue: who runs a job, and from when on a leader
-- gives it back. A job is held by it for as long as it is active and began when all of them did.
create table onward.lease_batch (
  id          bigint      generated always as identity primary key,
  worker_id   text        not null,
  queue       text        not null,
  started_at  timestamptz not null,
  lease       interval    not null,
  lease_until timestamptz not null,
  ids         uuid[]      not null
) with (fillfactor = 50);

create index lease_batch_lease_until on onward.lease_batch (lease_until);

-- By which a connection is known to lead to this store and to no other.
create table onward.identity (
  one boolean primary key default true check (one),
  id  uuid    not null default gen_random_uuid()
);

insert into onward.identity default values;

-- The keys of jobs that are being added, by transactions that have not ended. See lock_keys().
create unlogged table onward.key_lock (key bigint primary key);

-- Let nobody else lock these keys until the transaction ends: who inserts a key waits for another that has inserted the same, until that
-- one's transaction ends; and since the rows are deleted at once, none is left. Not advisory locks: anyone who can connect can take any
-- of those.
create function onward.lock_keys(keys bigint[]) returns void
  language plpgsql
as $$
begin
  insert into onward.key_lock (key) select k.key from unnest(keys) k (key) order by k.key on conflict do nothing;
  delete from onward.key_lock where key = any (keys);
end $$;

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
