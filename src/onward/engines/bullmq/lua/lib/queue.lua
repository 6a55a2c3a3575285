-- Functions of one queue: its clock, events, markers, and the places where its jobs wait.
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
local ttl_factor = tonumber(ARGV[2])
local onward_root = ARGV[3]
local root = ARGV[4]

-- Lua writes large numbers as 1e+15 when it joins strings.
local function int_string(number)
  return string.format('%.0f', number)
end

local function base_of(meta)
  return string.sub(meta, 1, -5)
end

local function name_of(base)
  return string.sub(base, #root + 1, -2)
end

local function settings_key(base)
  return onward_root .. 'queue:' .. name_of(base)
end

-- Notes that Onward serves a queue, so that patterns and the leader find it.
local function register(base)
  if call('SADD', onward_root .. 'queues', name_of(base)) == 1 then
    call('INCR', onward_root .. 'generation')
  end
end

-- Removes a queue without jobs and settings of ours from the registry: the leader asks for each that is there.
local function unregister_if_empty(base, has_patterns_without_it)
  local places = {settings_key(base)}
  for _, place in ipairs({'wait', 'paused', 'active', 'prioritized', 'delayed', 'waiting-children', 'completed',
    'failed', 'repeat'}) do
    places[#places + 1] = base .. place
  end
  if not has_patterns_without_it then
    places[#places + 1] = base .. 'meta'
  end
  if call('EXISTS', unpack(places)) == 0 and call('SREM', onward_root .. 'queues', name_of(base)) == 1 then
    call('INCR', onward_root .. 'generation')
    call('HDEL', onward_root .. 'pruned_until', name_of(base))
  end
end

local function trim_events(base)
  local max_length = call('HGET', base .. 'meta', 'opts.maxLenEvents')
  if not max_length then
    max_length = '10000'
    call('HSET', base .. 'meta', 'opts.maxLenEvents', max_length)
  end
  call('XTRIM', base .. 'events', 'MAXLEN', '~', max_length)
end

local function emit(base, ...)
  call('XADD', base .. 'events', '*', 'event', ...)
end

-- Paused, or as many jobs active as may be: nobody need be woken.
local function is_paused_or_maxed(base)
  local values = call('HMGET', base .. 'meta', 'paused', 'concurrency')
  if values[1] then
    return true
  end
  return values[2] and call('LLEN', base .. 'active') >= tonumber(values[2]) or false
end

local function add_base_marker(base)
  call('ZADD', base .. 'marker', 0, '0')
end

local function add_base_marker_if_needed(base)
  if not is_paused_or_maxed(base) then
    add_base_marker(base)
  end
end

local function add_delay_marker(base)
  local first = call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  if first[2] then
    call('ZADD', base .. 'marker', first[2] / 4096, '1')
  end
end

-- BullMQ 5 keeps the jobs of a paused queue in another list, and puts that list over the first when it goes on: a job
-- pushed to the first meanwhile would be lost.
local function wait_list_of(base)
  local values = call('HMGET', base .. 'meta', 'paused', 'version')
  if values[1] then
    local is_5 = values[2] and string.sub(values[2], 1, 8) == 'bullmq:5'
    if is_5 or call('EXISTS', base .. 'paused') == 1 then
      return base .. 'paused'
    end
  end
  return base .. 'wait'
end

-- Behind all others of the same priority: the counter tells them apart.
local function add_prioritized(base, id, priority)
  local turn = call('INCR', base .. 'pc')
  call('ZADD', base .. 'prioritized', priority * 4294967296 + turn % 4294967296, id)
end

-- push: LPUSH for the end of the line, RPUSH for its head.
local function make_ready(base, id, priority, push)
  if priority > 0 then
    add_prioritized(base, id, priority)
  else
    call(push, wait_list_of(base), id)
  end
end

local function is_lifo(opts)
  return opts and string.find(opts, '"lifo":true', 1, true)
end

-- The low twelve bits keep the order of jobs that are due in the same millisecond.
local function delay_until(base, id, due)
  local lowest = due * 4096
  local highest = lowest + 4095
  local last = call('ZREVRANGEBYSCORE', base .. 'delayed', int_string(highest), int_string(lowest), 'WITHSCORES',
    'LIMIT', 0, 1)
  local score = lowest
  if last[2] then
    score = math.min(tonumber(last[2]) + 1, highest)
  end
  call('ZADD', base .. 'delayed', int_string(score), id)
  emit(base, 'delayed', 'jobId', id, 'delay', int_string(due))
end

local function promote_due(base, limit)
  local due = call('ZRANGEBYSCORE', base .. 'delayed', 0, int_string((now + 1) * 4096 - 1), 'LIMIT', 0, limit)
  if #due == 0 then
    return 0
  end
  call('ZREM', base .. 'delayed', unpack(due))
  for _, id in ipairs(due) do
    local priority = tonumber(call('HGET', base .. id, 'priority')) or 0
    make_ready(base, id, priority, 'LPUSH')
    emit(base, 'waiting', 'jobId', id, 'prev', 'delayed')
    call('HSET', base .. id, 'delay', 0)
  end
  add_base_marker_if_needed(base)
  return #due
end

-- Milliseconds since 1970 at which the next delayed job is due; nil: there is none.
local function next_due(base)
  local first = call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  return first[2] and math.floor(first[2] / 4096)
end

local function is_leader(number, leader)
  local values = call('HMGET', onward_root .. 'leader', 'number', 'leader', 'until')
  return values[1] == number and values[2] == leader and tonumber(values[3]) > micros
end

-- Let a job that is new wait: for its time, or for a worker.
local function add_to_queue(base, id, priority, lifo, delay, now)
  if delay > 0 then
    delay_until(base, id, now + delay)
    add_delay_marker(base)
  else
    make_ready(base, id, priority, lifo and 'RPUSH' or 'LPUSH')
    add_base_marker_if_needed(base)
    emit(base, 'waiting', 'jobId', id)
  end
end

-- What an idempotency key is found by: keys of two organisations, or of two names, never meet.
local function idempotency_field(name, org, key)
  return redis.sha1hex((org and 'org:' .. #org .. ':' .. org or '') .. #name .. ':' .. name .. key)
end
