-- Roll up what tells of shorter times into rows of longer ones.
-- :grain  of the new rows; :span  how long that is; :until  from when on nothing is rolled up yet
-- :number, :leader_id  the leader's term; :now
insert into onward_usage (grain, at, org_id, queue, type, outcome,
                          runs, attempts, waited_us, took_us, waits_0, waits_1, waits_2, waits_3, waits_4, waits_5,
                          waits_6, waits_7, waits_8, waits_9, waits_10, takes_0, takes_1, takes_2, takes_3,
                          takes_4, takes_5, takes_6, takes_7, takes_8, takes_9, takes_10)
select :grain, at / :span * :span, org_id, queue, type, outcome,
       sum(runs), sum(attempts), sum(waited_us), sum(took_us), sum(waits_0), sum(waits_1), sum(waits_2),
       sum(waits_3), sum(waits_4), sum(waits_5), sum(waits_6), sum(waits_7), sum(waits_8), sum(waits_9),
       sum(waits_10), sum(takes_0), sum(takes_1), sum(takes_2), sum(takes_3), sum(takes_4), sum(takes_5),
       sum(takes_6), sum(takes_7), sum(takes_8), sum(takes_9), sum(takes_10)
  from onward_usage indexed by onward_usage_grain
 where grain = :grain - 1 and at < :until
   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)
 group by 2, 3, 4, 5, 6
