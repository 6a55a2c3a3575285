-- What we keep beside a schema of somebody else's, which has no place for it and is not ours to change: who works, who leads, and
-- how long a silent worker keeps the jobs of a queue.

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

-- By which a connection is known to lead to this store and to no other.
create table onward.identity (
  one boolean primary key default true check (one),
  id  uuid    not null default gen_random_uuid()
);

insert into onward.identity default values;
