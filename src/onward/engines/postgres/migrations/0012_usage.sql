-- What was run, rolled up. `grain` says of how long a time a row tells: 0 as a worker handed it in, 1 a minute, 2 a day; `at`
-- is when that begins, in UTC. The last columns are histograms, whose bounds onward.metering has. Rows are only added and
-- summed up, never changed: so nobody waits for another over them.
create table onward.usage (
  grain          smallint    not null default 0,
  at             timestamptz not null,
  org_id         text,
  queue          text        collate "C" not null,
  type           text        not null,
  outcome        text        not null,
  runs           bigint      not null,
  attempts       bigint      not null,
  wait_us        bigint      not null,
  run_us         bigint      not null,
  wait_bucket_0  bigint      not null,
  wait_bucket_1  bigint      not null,
  wait_bucket_2  bigint      not null,
  wait_bucket_3  bigint      not null,
  wait_bucket_4  bigint      not null,
  wait_bucket_5  bigint      not null,
  wait_bucket_6  bigint      not null,
  wait_bucket_7  bigint      not null,
  wait_bucket_8  bigint      not null,
  wait_bucket_9  bigint      not null,
  wait_bucket_10 bigint      not null,
  run_bucket_0   bigint      not null,
  run_bucket_1   bigint      not null,
  run_bucket_2   bigint      not null,
  run_bucket_3   bigint      not null,
  run_bucket_4   bigint      not null,
  run_bucket_5   bigint      not null,
  run_bucket_6   bigint      not null,
  run_bucket_7   bigint      not null,
  run_bucket_8   bigint      not null,
  run_bucket_9   bigint      not null,
  run_bucket_10  bigint      not null
);

alter table onward.usage replica identity full;

create index usage_grain on onward.usage (grain, at);

-- Sum up what is over: minutes that have ended, and days that ended the day before yesterday.
create function onward.roll_usage(now bigint, number bigint, leader_id text) returns void
  language plpgsql
as $$
#variable_conflict use_column
declare
  now_at timestamptz := coalesce(onward.to_timestamp(roll_usage.now), clock_timestamp());
  roll   record;
begin
  if not onward.is_leader(now_at, roll_usage.number, roll_usage.leader_id) then return; end if;
  for roll in
    select * from (values (1, 'minute', date_trunc('minute', now_at, 'UTC')),
                          (2, 'day', date_trunc('day', now_at, 'UTC') - interval '1 day')) r (grain, span, until)
  loop
    with old as (delete from onward.usage u where u.grain = roll.grain - 1 and u.at < roll.until returning u.*)
    insert into onward.usage (grain, at, org_id, queue, type, outcome,
                              runs, attempts, wait_us, run_us, wait_bucket_0, wait_bucket_1, wait_bucket_2, wait_bucket_3, wait_bucket_4,
                              wait_bucket_5, wait_bucket_6, wait_bucket_7, wait_bucket_8, wait_bucket_9, wait_bucket_10, run_bucket_0, run_bucket_1, run_bucket_2,
                              run_bucket_3, run_bucket_4, run_bucket_5, run_bucket_6, run_bucket_7, run_bucket_8, run_bucket_9, run_bucket_10)
    select roll.grain, date_trunc(roll.span, o.at, 'UTC'), o.org_id, o.queue, o.type, o.outcome,
           sum(o.runs), sum(o.attempts), sum(o.wait_us), sum(o.run_us), sum(o.wait_bucket_0), sum(o.wait_bucket_1),
           sum(o.wait_bucket_2), sum(o.wait_bucket_3), sum(o.wait_bucket_4), sum(o.wait_bucket_5), sum(o.wait_bucket_6), sum(o.wait_bucket_7),
           sum(o.wait_bucket_8), sum(o.wait_bucket_9), sum(o.wait_bucket_10), sum(o.run_bucket_0), sum(o.run_bucket_1), sum(o.run_bucket_2),
           sum(o.run_bucket_3), sum(o.run_bucket_4), sum(o.run_bucket_5), sum(o.run_bucket_6), sum(o.run_bucket_7), sum(o.run_bucket_8),
           sum(o.run_bucket_9), sum(o.run_bucket_10)
      from old o group by 2, 3, 4, 5, 6;
  end loop;
end $$;
