-- Schedules: jobs that the leader enqueues periodically. The job and the trigger are as onward.schedule writes them.
create table onward.schedule (
  name       text        collate "C" primary key,
  job        json        not null,
  trigger    jsonb       not null,
  missed     text        not null,
  paused     boolean     not null default false,
  next_at    timestamptz,
  last_at    timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  check (paused = (next_at is null))
);

create index schedule_due on onward.schedule (next_at) where next_at is not null;

