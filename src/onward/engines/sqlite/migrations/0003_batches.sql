-- Batches: jobs that are counted together; and dependencies between the jobs of one, which then wait for each other.
-- `pending_dependencies`: jobs yet to end; null: it has named none. `on_dependency_failure`: what if one of those does not complete.
-- `has_dependents`: another waits for it.
alter table onward_job add column batch text;
alter table onward_job add column pending_dependencies integer;
alter table onward_job add column on_dependency_failure text;
alter table onward_job add column has_dependents integer not null default 0;

create index onward_job_batch on onward_job (batch, status) where batch is not null;

create table onward_batch (
  seq         integer primary key,
  name        text    not null unique,
  queue       text,
  sealed      integer not null default 0,
  stopped     integer not null default 0,  -- what had not started then was cancelled, and nothing can be added
  total       integer not null default 0,
  completed   integer not null default 0,
  failed      integer not null default 0,
  cancelled   integer not null default 0,
  -- Jobs to be, as JSON. Each is taken out by whoever enqueues it.
  on_success  text,
  on_failure  text,
  on_finished text,
  created_at  integer not null,
  finished_at integer,
  check (finished_at is null or sealed)
) strict;

create index onward_batch_finished on onward_batch (finished_at) where finished_at is not null;

create table onward_dependency (
  job        text    not null,            -- the one that waits
  position   integer not null,            -- in what the job has named
  depends_on text    not null,
  batch      text    not null,
  done       integer not null default 0,  -- the job knows how the one it depends on has ended
  primary key (job, position)
) strict, without rowid;

create index onward_dependency_unresolved on onward_dependency (depends_on) where done = 0;
create index onward_dependency_batch on onward_dependency (batch);

-- What is still to be thought through: the end of a job that others wait for, or (no job) how a batch stands. Written by
-- triggers, so that no way in which a job can end is forgotten; read and emptied by batches.advance, as a rule within the
-- same transaction.
create table onward_batch_event (
  no    integer primary key,
  batch text    not null,
  job   text,
  stops integer not null default 0  -- what has not started is to be cancelled
) strict;

create trigger onward_job_ended after update of completed_at on onward_job
when new.batch is not null and (new.completed_at is null) <> (old.completed_at is null)
begin
  update onward_batch
     set completed = completed + (new.status = 'completed') - (old.status = 'completed'),
         failed = failed + (new.status in ('failed', 'dead_letter')) - (old.status in ('failed', 'dead_letter')),
         cancelled = cancelled + (new.status = 'cancelled') - (old.status = 'cancelled')
   where name = new.batch;
  insert into onward_batch_event (batch, job) select new.batch, new.id where new.has_dependents and new.completed_at is not null;
end;

create trigger onward_job_removed after delete on onward_job when old.batch is not null and old.completed_at is null
begin
  update onward_batch set cancelled = cancelled + 1 where name = old.batch;
  insert into onward_batch_event (batch, job) select old.batch, old.id where old.has_dependents;
end;

create trigger onward_batch_changed after update of sealed, stopped, total, completed, failed, cancelled on onward_batch
when new.finished_at is null
 and (new.sealed and new.completed + new.failed + new.cancelled >= new.total
      or new.stopped > old.stopped
      or new.failed and new.on_failure is not null)
begin
  insert into onward_batch_event (batch, stops) values (new.name, new.stopped > old.stopped);
end;
