-- What is enqueued again and again. The job and the trigger are JSON, as onward.schedule writes them.
create table onward_schedule (
  name       text    primary key,
  job        text    not null,
  trigger     text    not null,
  missed     text    not null,
  paused     integer not null default 0,
  next_at    integer,
  last_at    integer,
  created_at integer not null,
  updated_at integer not null,
  check ((paused = 1) = (next_at is null))
) strict, without rowid;

create index onward_schedule_due on onward_schedule (next_at) where next_at is not null;
