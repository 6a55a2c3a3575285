-- Queues by name, with what they are told to do. Those that were told nothing are there by their lanes.
-- $1, $2  the names wanted: from the first up to but not including the second
select name, paused, rate_count, onward.to_micros(rate_period), rate_burst,
       case when spacing is not null and isfinite(next_permit_at) then onward.to_micros(next_permit_at) end,
       global_concurrency, weight, onward.to_micros(lease), max_attempts, backoff::text, onward.to_micros(keep_completed),
       keep_completed_count, onward.to_micros(keep_failed), keep_failed_count, onward.to_micros(keep_cancelled),
       onward.to_micros(keep_archived), pause_reason, paused_by, onward.to_micros(paused_at)
  from onward.queue where name >= $1::text collate "C" and name < $2::text collate "C"
union all
select distinct queue, false, null::bigint, null::bigint, null::bigint, null::bigint, null::bigint, 1, null::bigint, null::bigint,
       null, 604800000000, null::bigint, null::bigint, null::bigint, 604800000000, 2592000000000, null, null, null::bigint
  from onward.lane l
 where queue >= $1::text collate "C" and queue < $2::text collate "C"
   and not exists (select from onward.queue q where q.name = l.queue)
 order by 1
