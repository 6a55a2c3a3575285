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
  last_heartbeat timestamptz not null
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
