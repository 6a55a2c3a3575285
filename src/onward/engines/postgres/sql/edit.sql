-- Change a job that waits; answers a row if it does.
-- $1 now; $2 id, $3 queue; $4 priority, $5 payload, $6 next_run_at, $7 max_attempts: null where it stays
with edited as (
  update onward.job j
     set priority = coalesce($4::integer, j.priority), payload = coalesce($5::text::json, j.payload),
         next_run_at = coalesce(onward.to_timestamp($6::bigint), j.next_run_at), max_attempts = coalesce($7::bigint, j.max_attempts),
         updated_at = greatest(coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), j.updated_at + interval '1 microsecond')
   where j.id = $2::uuid and j.queue = $3::text collate "C" and j.lease_until is null
     and ($6::bigint is null or j.ready_at is null and j.next_run_at is not null)
  returning j.queue, j.priority, j.ready_at)
select onward.open_lanes($1::bigint, array[queue], array[priority::integer],
                         array[ready_at])
  from edited
