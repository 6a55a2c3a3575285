-- Ended jobs that their queue no longer keeps, for a while longer. Nothing here is in anybody's way: claims, listings, counts
-- and keys know nothing of it.
create table onward_archive (
  seq              integer primary key,  -- its place in here, not the one it had
  until            integer,              -- null: until purged
  id               text    not null,
  queue            text    not null,
  type             text    not null,
  status           text    not null,
  priority         integer not null,
  org_id           text,
  payload          text    not null,
  attempts         integer not null,
  max_attempts     integer not null,
  crashes          integer not null,
  suspect          integer not null,
  backoff          text,
  idempotency_key  text,
  dedupe_key       text,
  next_run_at      integer,
  start_by         integer,
  worker_id        text,
  created_at       integer not null,
  claimed_at       integer,
  started_at       integer,
  completed_at     integer not null,
  updated_at       integer not null,
  last_error       text,
  errors           text,
  progress         integer,
  progress_message text,
  result           text,
  batch            text
) strict;

create unique index onward_archive_id on onward_archive (id);
create index onward_archive_until on onward_archive (until) where until is not null;

-- Thirty days, unless told; none: not archived.
alter table onward_queue add column keep_archived_us integer default 2592000000000;
