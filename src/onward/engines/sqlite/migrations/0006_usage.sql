-- What was run, rolled up. `grain` says of how long a time a row tells: 0 as a worker handed it in, 1 a minute, 2 a day; `at`
-- is when that begins. The last columns are histograms, whose bounds onward.metering has.
create table onward_usage (
  grain     integer not null default 0,
  at        integer not null,
  org_id    text,
  queue     text    not null,
  type      text    not null,
  outcome   text    not null,
  runs      integer not null,
  attempts  integer not null,
  waited_us integer not null,
  took_us   integer not null,
  waits_0   integer not null,
  waits_1   integer not null,
  waits_2   integer not null,
  waits_3   integer not null,
  waits_4   integer not null,
  waits_5   integer not null,
  waits_6   integer not null,
  waits_7   integer not null,
  waits_8   integer not null,
  waits_9   integer not null,
  waits_10  integer not null,
  takes_0   integer not null,
  takes_1   integer not null,
  takes_2   integer not null,
  takes_3   integer not null,
  takes_4   integer not null,
  takes_5   integer not null,
  takes_6   integer not null,
  takes_7   integer not null,
  takes_8   integer not null,
  takes_9   integer not null,
  takes_10  integer not null
);

create index onward_usage_grain on onward_usage (grain, at);
