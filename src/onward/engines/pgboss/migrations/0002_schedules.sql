-- Paused schedules. pg-boss cannot pause one: its row is moved here, where no instance of pg-boss fires it, and back.
create table onward.paused_schedule (
  queue    text  collate "C" not null,
  key      text  collate "C" not null,
  kind     text  not null default 'cron',
  cron     text  not null,
  timezone text  not null,
  data     jsonb,
  options  jsonb not null,
  primary key (queue, key)
);
