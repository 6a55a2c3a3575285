-- Words of one queue: its clock, events, markers, and the places where its jobs wait.
--
-- Every script begins with the same four arguments:
--   ARGV[1]  the time in microseconds, '' for the server's own
--   ARGV[2]  how many times longer than said a key with an end is kept: 1, unless a test moves the clock
--   ARGV[3]  where Onward's own keys begin: onward:bull:
--   ARGV[4]  where all queues begin: bull:
-- and every key of a queue is named by its base (bull:mail:), which is KEYS[n], the queue's meta key, without its end.

local call = redis.call
local micros = tonumber(ARGV[1])
if not micros then
  local time = call('TIME')
  micros = time[1] * 1000000 + time[2]
end
local now = math.floor(micros / 1000)
local stretch = tonumber(ARGV[2])
local home = ARGV[3]
local root = ARGV[4]

-- Lua writes large numbers as 1e+15 when it joins strings.
local function whole(number)
  return string.format('%.0f', number)
end

local function base_of(meta)
  return string.sub(meta, 1, -5)
end

local function name_of(base)
  return string.sub(base, #root + 1, -2)
end

local function own_of(base)
  return home .. 'queue:' .. name_of(base)
end

-- Notes that Onward serves a queue, so that patterns and the leader find it.
local function register(base)
  if call('SADD', home .. 'queues', name_of(base)) == 1 then
    call('INCR', home .. 'generation')
  end
end

local function trim(base)
  local most = call('HGET', base .. 'meta', 'opts.maxLenEvents')
  if not most then
    most = '10000'
    call('HSET', base .. 'meta', 'opts.maxLenEvents', most)
  end
  call('XTRIM', base .. 'events', 'MAXLEN', '~', most)
end

local function tell(base, ...)
  call('XADD', base .. 'events', '*', 'event', ...)
end

-- Paused, or as many jobs active as may be: nobody need be woken.
local function is_shut(base)
  local said = call('HMGET', base .. 'meta', 'paused', 'concurrency')
  if said[1] then
    return true
  end
  return said[2] and call('LLEN', base .. 'active') >= tonumber(said[2]) or false
end

local function mark(base)
  call('ZADD', base .. 'marker', 0, '0')
end

local function mark_unless_shut(base)
  if not is_shut(base) then
    mark(base)
  end
end

local function mark_next_due(base)
  local first = call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  if first[2] then
    call('ZADD', base .. 'marker', first[2] / 4096, '1')
  end
end

-- BullMQ 5 keeps the jobs of a paused queue in another list, and puts that list over the first when it goes on: a job
-- pushed to the first meanwhile would be lost.
local function line_of(base)
  local said = call('HMGET', base .. 'meta', 'paused', 'version')
  if said[1] then
    local is_5 = said[2] and string.sub(said[2], 1, 8) == 'bullmq:5'
    if is_5 or call('EXISTS', base .. 'paused') == 1 then
      return base .. 'paused'
    end
  end
  return base .. 'wait'
end

-- Behind all others of the same priority: the counter tells them apart.
local function put_by_priority(base, id, priority)
  local turn = call('INCR', base .. 'pc')
  call('ZADD', base .. 'prioritized', priority * 4294967296 + turn % 4294967296, id)
end

-- push: LPUSH for the end of the line, RPUSH for its head.
local function make_ready(base, id, priority, push)
  if priority > 0 then
    put_by_priority(base, id, priority)
  else
    call(push, line_of(base), id)
  end
end

local function is_lifo(opts)
  return opts and string.find(opts, '"lifo":true', 1, true)
end

-- The low twelve bits keep the order of jobs that are due in the same millisecond.
local function delay_until(base, id, due)
  local lowest = due * 4096
  local highest = lowest + 4095
  local last = call('ZREVRANGEBYSCORE', base .. 'delayed', whole(highest), whole(lowest), 'WITHSCORES', 'LIMIT', 0, 1)
  local score = lowest
  if last[2] then
    score = math.min(tonumber(last[2]) + 1, highest)
  end
  call('ZADD', base .. 'delayed', whole(score), id)
  tell(base, 'delayed', 'jobId', id, 'delay', whole(due))
end

local function promote_due(base, most)
  local due = call('ZRANGEBYSCORE', base .. 'delayed', 0, whole((now + 1) * 4096 - 1), 'LIMIT', 0, most)
  if #due == 0 then
    return 0
  end
  call('ZREM', base .. 'delayed', unpack(due))
  for _, id in ipairs(due) do
    local priority = tonumber(call('HGET', base .. id, 'priority')) or 0
    make_ready(base, id, priority, 'LPUSH')
    tell(base, 'waiting', 'jobId', id, 'prev', 'delayed')
    call('HSET', base .. id, 'delay', 0)
  end
  mark_unless_shut(base)
  return #due
end

-- Milliseconds since 1970 at which the next delayed job is due; nil: there is none.
local function next_due(base)
  local first = call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  return first[2] and math.floor(first[2] / 4096)
end

local function leads(number, leader)
  local said = call('HMGET', home .. 'leader', 'number', 'leader', 'until')
  return said[1] == number and said[2] == leader and tonumber(said[3]) > micros
end

-- Let a job that is new wait: for its time, or for a worker.
local function put_in_line(base, id, priority, lifo, delay, now)
  if delay > 0 then
    delay_until(base, id, now + delay)
    mark_next_due(base)
  else
    make_ready(base, id, priority, lifo and 'RPUSH' or 'LPUSH')
    mark_unless_shut(base)
    tell(base, 'waiting', 'jobId', id)
  end
end
