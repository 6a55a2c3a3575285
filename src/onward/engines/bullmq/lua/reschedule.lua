-- Makes the next job of a scheduler, when a worker has picked up the last one; else the schedule would end.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the scheduler
-- ARGV[6]  the job that was picked up: only the newest of the scheduler makes another
-- ARGV[7]  when the next one is due, in milliseconds since 1970; '' where the scheduler says how often
-- ARGV[8]  the next job's options (JSON)
-- Answers the next job's id, or nothing.

local base = base_of(KEYS[1])
local scheduler, next_at = ARGV[5], tonumber(ARGV[7])
local schedulers = base .. 'repeat'
local settings = schedulers .. ':' .. scheduler
local last = tonumber(call('ZSCORE', schedulers, scheduler))
if not last or ARGV[6] ~= 'repeat:' .. scheduler .. ':' .. whole(last) then
  return false
end
local said = call('HMGET', settings, 'name', 'data', 'every', 'offset')
local opts = cjson.decode(ARGV[8])
local every = tonumber(said[3]) or (opts['repeat'] and tonumber(opts['repeat'].every))
if every then
  next_at = last + every
  if next_at < now then
    -- Times that passed while nobody worked are left out; the beat is kept.
    local beat = math.floor(now / every) * every + (tonumber(said[4]) or tonumber(opts['repeat'].offset) or 0)
    next_at = beat <= now and beat + every or beat
  end
  next_at = math.floor(next_at)
end
local id = 'repeat:' .. scheduler .. ':' .. whole(next_at)
local key = base .. id
if call('EXISTS', key) == 1 then
  tell(base, 'duplicated', 'jobId', id)
  return false
end
call('ZADD', schedulers, whole(next_at), scheduler)
call('HINCRBY', settings, 'ic', 1)
call('INCR', base .. 'id')
local delay = math.max(0, next_at - now)
local priority = tonumber(opts.priority) or 0
opts.delay = delay
opts.jobId = id
call('HSET', key, 'name', said[1] or '', 'data', said[2] or '{}', 'opts', cjson.encode(opts), 'timestamp',
  whole(opts.timestamp or now), 'delay', whole(delay), 'priority', priority, 'rjk', scheduler)
if opts.de and opts.de.id then
  call('HSET', key, 'deid', opts.de.id)
end
tell(base, 'added', 'jobId', id, 'name', said[1] or '')
if delay > 0 then
  delay_until(base, id, now + delay)
  mark_next_due(base)
else
  make_ready(base, id, priority, opts.lifo and 'RPUSH' or 'LPUSH')
  mark_unless_shut(base)
  tell(base, 'waiting', 'jobId', id)
end
trim(base)
return id
