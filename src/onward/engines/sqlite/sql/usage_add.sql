-- Add counts to the present minute.
-- :rows  JSON array of rows, in the order of the columns
insert into onward_usage (at, org_id, queue, type, outcome,
                          runs, attempts, wait_us, run_us, wait_bucket_0, wait_bucket_1, wait_bucket_2, wait_bucket_3, wait_bucket_4, wait_bucket_5,
                          wait_bucket_6, wait_bucket_7, wait_bucket_8, wait_bucket_9, wait_bucket_10, run_bucket_0, run_bucket_1, run_bucket_2, run_bucket_3,
                          run_bucket_4, run_bucket_5, run_bucket_6, run_bucket_7, run_bucket_8, run_bucket_9, run_bucket_10)
select :at,
       value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14,
       value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20, value ->> 21,
       value ->> 22, value ->> 23, value ->> 24, value ->> 25, value ->> 26, value ->> 27, value ->> 28,
       value ->> 29
  from json_each(:rows)
