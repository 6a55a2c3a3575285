-- Changes a job's data, or its progress with the event that tells of it.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the job's id
-- ARGV[6]  'data' or 'progress'
-- ARGV[7]  the value (JSON)
-- Answers 1, or 0 where there is no such job.

local base = base_of(KEYS[1])
local key = base .. ARGV[5]
if call('EXISTS', key) == 0 then
  return 0
end
call('HSET', key, ARGV[6], ARGV[7])
if ARGV[6] == 'progress' then
  emit(base, 'progress', 'jobId', ARGV[5], 'data', ARGV[7])
  trim_events(base)
end
return 1
