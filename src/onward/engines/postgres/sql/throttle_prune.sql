-- Forget throttles that hold nothing any more.
-- $1 now, $2 number and $3 leader_id of the term, $4 limit
-- The time is asked for once, or no index could be used; and job by job, for a join may read them all.
with gone as (
  delete from onward.throttle h
   where h.digest = any (array(
           select d.digest from onward.throttle d
            where d.until <= (select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()))
              and (select true from onward.job j
                    where j.id = d.id and coalesce(j.ready_at, j.next_run_at) is not null and j.lease_until is null
                      and j.attempts = 0) is null
            order by d.until limit $4::bigint for update skip locked))
     and (select onward.is_leader(coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), $2::bigint, $3::text))
  returning 1)
select count(*) from gone
