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
  wait_us integer not null,
  run_us   integer not null,
  wait_bucket_0   integer not null,
  wait_bucket_1   integer not null,
  wait_bucket_2   integer not null,
  wait_bucket_3   integer not null,
  wait_bucket_4   integer not null,
  wait_bucket_5   integer not null,
  wait_bucket_6   integer not null,
  wait_bucket_7   integer not null,
  wait_bucket_8   integer not null,
  wait_bucket_9   integer not null,
  wait_bucket_10  integer not null,
  run_bucket_0   integer not null,
  run_bucket_1   integer not null,
  run_bucket_2   integer not null,
  run_bucket_3   integer not null,
  run_bucket_4   integer not null,
  run_bucket_5   integer not null,
  run_bucket_6   integer not null,
  run_bucket_7   integer not null,
  run_bucket_8   integer not null,
  run_bucket_9   integer not null,
  run_bucket_10  integer not null
) strict;

create index onward_usage_grain on onward_usage (grain, at);
