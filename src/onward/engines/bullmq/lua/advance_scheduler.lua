-- Makes the next job of a scheduler, when a worker has picked up the last one; else the schedule would end.
--
-- uses: queue schedulers
-- KEYS[1]  the queue's meta
-- ARGV[5]  the scheduler
-- ARGV[6]  the job that was picked up: only the newest of the scheduler makes another
-- ARGV[7]  when the next one is due, in milliseconds since 1970; '' where the scheduler says how often
-- ARGV[8]  the next job's options (JSON)
-- Answers the next job's id, or nothing.

local base = base_of(KEYS[1])
local scheduler, due = ARGV[5], tonumber(ARGV[7])
local schedulers = base .. 'repeat'
local settings = schedulers .. ':' .. scheduler
local last = tonumber(call('ZSCORE', schedulers, scheduler))
if not last or ARGV[6] ~= 'repeat:' .. scheduler .. ':' .. int_string(last) then
  return false
end
local values = call('HMGET', settings, 'name', 'data', 'every', 'offset')
local opts = cjson.decode(ARGV[8])
local every = tonumber(values[3]) or (opts['repeat'] and tonumber(opts['repeat'].every))
if every then
  due = next_run(last, every, tonumber(values[4]) or tonumber(opts['repeat'].offset))
end
local id = 'repeat:' .. scheduler .. ':' .. int_string(due)
if call('EXISTS', base .. id) == 1 then
  emit(base, 'duplicated', 'jobId', id)
  return false
end
call('ZADD', schedulers, int_string(due), scheduler)
call('HINCRBY', settings, 'ic', 1)
add_scheduled(base, scheduler, id, due, values[1] or '', values[2] or '{}', opts, opts.timestamp or now)
return id
