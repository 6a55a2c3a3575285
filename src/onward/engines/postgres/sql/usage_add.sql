-- Add counts to the present minute.
-- $1 now, $2 JSON array of rows, in the order of the columns
insert into onward.usage (at, org_id, queue, type, outcome,
                          runs, attempts, wait_us, run_us, wait_bucket_0, wait_bucket_1, wait_bucket_2, wait_bucket_3, wait_bucket_4, wait_bucket_5,
                          wait_bucket_6, wait_bucket_7, wait_bucket_8, wait_bucket_9, wait_bucket_10, run_bucket_0, run_bucket_1, run_bucket_2, run_bucket_3, run_bucket_4,
                          run_bucket_5, run_bucket_6, run_bucket_7, run_bucket_8, run_bucket_9, run_bucket_10)
select date_trunc('minute', coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), 'UTC'),
       r ->> 0, r ->> 1, r ->> 2, r ->> 3, (r ->> 4)::bigint, (r ->> 5)::bigint, (r ->> 6)::bigint,
       (r ->> 7)::bigint, (r ->> 8)::bigint, (r ->> 9)::bigint, (r ->> 10)::bigint, (r ->> 11)::bigint,
       (r ->> 12)::bigint, (r ->> 13)::bigint, (r ->> 14)::bigint, (r ->> 15)::bigint, (r ->> 16)::bigint,
       (r ->> 17)::bigint, (r ->> 18)::bigint, (r ->> 19)::bigint, (r ->> 20)::bigint, (r ->> 21)::bigint,
       (r ->> 22)::bigint, (r ->> 23)::bigint, (r ->> 24)::bigint, (r ->> 25)::bigint, (r ->> 26)::bigint,
       (r ->> 27)::bigint, (r ->> 28)::bigint, (r ->> 29)::bigint
  from json_array_elements($2::text::json) r
