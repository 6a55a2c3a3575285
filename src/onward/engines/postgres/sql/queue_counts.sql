-- How many jobs of each queue have each status, and since when the oldest ready one has waited.
-- $1, $2  the names wanted
-- Relies on: job_claim, job_suspect, job_later, history_prune.
select queue, status, count(*), onward.to_micros(min(ready_at) filter (where status = 'pending')) from onward.live
 where ready_at is not null and not suspect and queue >= $1::text collate "C" and queue < $2::text collate "C"
 group by queue, status
union all
select queue, status, count(*), onward.to_micros(min(ready_at) filter (where status = 'pending')) from onward.live
 where ready_at is not null and suspect and queue >= $1::text collate "C" and queue < $2::text collate "C"
 group by queue, status
union all
select queue, status, count(*), null from onward.live
 where ready_at is null and queue >= $1::text collate "C" and queue < $2::text collate "C" group by queue, status
union all
select queue, status, count(*), null from onward.history
 where queue >= $1::text collate "C" and queue < $2::text collate "C" group by queue, status
