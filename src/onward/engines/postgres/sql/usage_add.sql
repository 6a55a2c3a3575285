-- Add counts to the present minute.
-- $1 now, $2 JSON array of rows, in the order of the columns
insert into onward.usage (at, org_id, queue, type, outcome,
                          runs, attempts, waited_us, took_us, waits_0, waits_1, waits_2, waits_3, waits_4, waits_5,
                          waits_6, waits_7, waits_8, waits_9, waits_10, takes_0, takes_1, takes_2, takes_3, takes_4,
                          takes_5, takes_6, takes_7, takes_8, takes_9, takes_10)
select date_trunc('minute', coalesce(onward.moment($1::bigint), clock_timestamp()), 'UTC'),
       r ->> 0, r ->> 1, r ->> 2, r ->> 3, (r ->> 4)::bigint, (r ->> 5)::bigint, (r ->> 6)::bigint,
       (r ->> 7)::bigint, (r ->> 8)::bigint, (r ->> 9)::bigint, (r ->> 10)::bigint, (r ->> 11)::bigint,
       (r ->> 12)::bigint, (r ->> 13)::bigint, (r ->> 14)::bigint, (r ->> 15)::bigint, (r ->> 16)::bigint,
       (r ->> 17)::bigint, (r ->> 18)::bigint, (r ->> 19)::bigint, (r ->> 20)::bigint, (r ->> 21)::bigint,
       (r ->> 22)::bigint, (r ->> 23)::bigint, (r ->> 24)::bigint, (r ->> 25)::bigint, (r ->> 26)::bigint,
       (r ->> 27)::bigint, (r ->> 28)::bigint, (r ->> 29)::bigint
  from json_array_elements($2::text::json) r
