-- What was run, rolled up. `grain` says of how long a time a row tells: 0 as a worker handed it in, 1 a minute, 2 a day; `at`
-- is when that begins, in UTC. The last columns are histograms, whose bounds onward.metering has. Rows are only added and
-- summed up, never changed: so nobody waits for another over them.
create table onward.usage (
  grain     smallint    not null default 0,
  at        timestamptz not null,
  org_id    text,
  queue     text        collate "C" not null,
  type      text        not null,
  outcome   text        not null,
  runs      bigint      not null,
  attempts  bigint      not null,
  waited_us bigint      not null,
  took_us   bigint      not null,
  waits_0   bigint      not null,
  waits_1   bigint      not null,
  waits_2   bigint      not null,
  waits_3   bigint      not null,
  waits_4   bigint      not null,
  waits_5   bigint      not null,
  waits_6   bigint      not null,
  waits_7   bigint      not null,
  waits_8   bigint      not null,
  waits_9   bigint      not null,
  waits_10  bigint      not null,
  takes_0   bigint      not null,
  takes_1   bigint      not null,
  takes_2   bigint      not null,
  takes_3   bigint      not null,
  takes_4   bigint      not null,
  takes_5   bigint      not null,
  takes_6   bigint      not null,
  takes_7   bigint      not null,
  takes_8   bigint      not null,
  takes_9   bigint      not null,
  takes_10  bigint      not null
);

create index usage_grain on onward.usage (grain, at);

-- Sum up what is over: minutes that have ended, and days that ended the day before yesterday.
create function onward.roll_usage(now bigint, number bigint, leader_id text) returns void
  language plpgsql
as $$
#variable_conflict use_column
declare
  moment timestamptz := coalesce(onward.moment(roll_usage.now), clock_timestamp());
  roll   record;
begin
  if not onward.is_leader(moment, roll_usage.number, roll_usage.leader_id) then return; end if;
  for roll in
    select * from (values (1, 'minute', date_trunc('minute', moment, 'UTC')),
                          (2, 'day', date_trunc('day', moment, 'UTC') - interval '1 day')) r (grain, span, until)
  loop
    with old as (delete from onward.usage u where u.grain = roll.grain - 1 and u.at < roll.until returning u.*)
    insert into onward.usage (grain, at, org_id, queue, type, outcome,
                              runs, attempts, waited_us, took_us, waits_0, waits_1, waits_2, waits_3, waits_4,
                              waits_5, waits_6, waits_7, waits_8, waits_9, waits_10, takes_0, takes_1, takes_2,
                              takes_3, takes_4, takes_5, takes_6, takes_7, takes_8, takes_9, takes_10)
    select roll.grain, date_trunc(roll.span, o.at, 'UTC'), o.org_id, o.queue, o.type, o.outcome,
           sum(o.runs), sum(o.attempts), sum(o.waited_us), sum(o.took_us), sum(o.waits_0), sum(o.waits_1),
           sum(o.waits_2), sum(o.waits_3), sum(o.waits_4), sum(o.waits_5), sum(o.waits_6), sum(o.waits_7),
           sum(o.waits_8), sum(o.waits_9), sum(o.waits_10), sum(o.takes_0), sum(o.takes_1), sum(o.takes_2),
           sum(o.takes_3), sum(o.takes_4), sum(o.takes_5), sum(o.takes_6), sum(o.takes_7), sum(o.takes_8),
           sum(o.takes_9), sum(o.takes_10)
      from old o group by 2, 3, 4, 5, 6;
  end loop;
end $$;
