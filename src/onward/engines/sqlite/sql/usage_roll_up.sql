-- Roll up what tells of shorter times into rows of longer ones.
-- :grain  of the new rows; :span  how long that is; :until  from when on nothing is rolled up yet
-- :number, :leader_id  the leader's term; :now
insert into onward_usage (grain, at, org_id, queue, type, outcome,
                          runs, attempts, wait_us, run_us, wait_bucket_0, wait_bucket_1, wait_bucket_2, wait_bucket_3, wait_bucket_4, wait_bucket_5,
                          wait_bucket_6, wait_bucket_7, wait_bucket_8, wait_bucket_9, wait_bucket_10, run_bucket_0, run_bucket_1, run_bucket_2, run_bucket_3,
                          run_bucket_4, run_bucket_5, run_bucket_6, run_bucket_7, run_bucket_8, run_bucket_9, run_bucket_10)
select :grain, at / :span * :span, org_id, queue, type, outcome,
       sum(runs), sum(attempts), sum(wait_us), sum(run_us), sum(wait_bucket_0), sum(wait_bucket_1), sum(wait_bucket_2),
       sum(wait_bucket_3), sum(wait_bucket_4), sum(wait_bucket_5), sum(wait_bucket_6), sum(wait_bucket_7), sum(wait_bucket_8), sum(wait_bucket_9),
       sum(wait_bucket_10), sum(run_bucket_0), sum(run_bucket_1), sum(run_bucket_2), sum(run_bucket_3), sum(run_bucket_4), sum(run_bucket_5),
       sum(run_bucket_6), sum(run_bucket_7), sum(run_bucket_8), sum(run_bucket_9), sum(run_bucket_10)
  from onward_usage indexed by onward_usage_grain
 where grain = :grain - 1 and at < :until
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
 group by 2, 3, 4, 5, 6
