-- The suspect that has waited longest, as one row of JSON; it is to run alone.
-- :ranges  JSON array of [first name, name after the last]; :max_inline (characters); :now
-- A paused queue gives nothing, nor does one whose concurrency is used up or whose rate permit has not come.
-- Relies on: onward_job_suspect.
select json_group_array(json_array(
         json_array(seq, id, type, iif(length(payload) > :max_inline, '', payload), attempts, max_attempts, crashes, suspect,
                    org_id, priority, backoff, ready_at, trace,
                    iif(length(payload) > :max_inline, length(payload), 0)),
         json_array(queue, weight, lease_us, global_concurrency, rate_count, rate_period_us, rate_burst, next_permit_at)))
  from (select j.*, q.weight, q.global_concurrency, q.rate_count, q.rate_period_us, q.rate_burst, q.next_permit_at,
               q.lease_us as lease_us
          from json_each(:ranges) r
          join (select seq, id, type, payload, attempts, max_attempts, crashes, suspect, org_id, priority, backoff,
                       ready_at, trace, queue, start_by, status
                  from onward_job indexed by onward_job_suspect where status = 'pending' and suspect = 1) j
            on j.queue >= r.value ->> 0 and j.queue < r.value ->> 1
          join onward_queue q on q.name = j.queue and q.paused = 0
         where (j.start_by is null or j.start_by > :now)
         order by j.ready_at, j.seq limit 20)
