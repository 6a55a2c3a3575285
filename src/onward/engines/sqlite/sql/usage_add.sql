-- Add counts to the present minute.
-- :rows  JSON array of rows, in the order of the columns
insert into onward_usage (at, org_id, queue, type, outcome,
                          runs, attempts, waited_us, took_us, waits_0, waits_1, waits_2, waits_3, waits_4, waits_5,
                          waits_6, waits_7, waits_8, waits_9, waits_10, takes_0, takes_1, takes_2, takes_3,
                          takes_4, takes_5, takes_6, takes_7, takes_8, takes_9, takes_10)
select :at,
       value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14,
       value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20, value ->> 21,
       value ->> 22, value ->> 23, value ->> 24, value ->> 25, value ->> 26, value ->> 27, value ->> 28,
       value ->> 29
  from json_each(:rows)
