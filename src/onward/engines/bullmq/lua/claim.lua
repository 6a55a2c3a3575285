-- Takes ready jobs from one or more queues, fairly, and locks each with a token of its own.
--
-- uses: queue
-- KEYS[n]   the meta of each queue, in the order of their turns
-- ARGV[5]   the worker's name
-- ARGV[6]   what the tokens of this claim begin with; the n-th job's token ends in :n
-- ARGV[7]   the lease in milliseconds, where the queue does not say otherwise
-- ARGV[8]   how many jobs can start at once
-- ARGV[9]   how many more may come from queues without a limit
-- ARGV[10]  how much of its turn the first queue has left; 0: its turn begins
-- ARGV[11]  what goes before: 'outcomes', so that a queue may have run dry; 'marker': a wait for one, so that who asks has
--           come late, takes nothing from limited queues (no slots), and is told to come again if these have something
-- ARGV[12]  bytes that the jobs may have together: the first comes whatever its size, the rest stays and the caller is told to
--           come again at once
-- Answers {the generation of names, microseconds until something comes by itself or -1, whose turn is next (its number
-- among KEYS), what is left of that turn, the time in microseconds, then for each job: the number of its queue, its id, the lease,
-- microseconds within which it must start or -1, its fields (HGETALL)}. A job whose key is no hash is taken off the queue and comes
-- with the error of Redis (a text) in the place of its fields, without a lock: nothing can be written to it.

local slots, prefetch_started = tonumber(ARGV[8]), tonumber(ARGV[9])
local retry_after
local function retry_in(micros_from_now)
  if micros_from_now and (not retry_after or micros_from_now < retry_after) then
    retry_after = math.max(micros_from_now, 0)
  end
end

-- Permits that a rate-limited queue has free: each job moves the next permit on, and one that comes late for its
-- permit may be followed sooner, within the slack.
local function next_permit(rate)
  return rate.next_permit_at - rate.burst_window
end
local function use_permit(rate)
  rate.next_permit_at = math.max(rate.next_permit_at, micros - rate.start_within) + rate.spacing
end
local function available_permits(rate, wanted)
  local trial = {spacing = rate.spacing, burst_window = rate.burst_window, start_within = rate.start_within,
    next_permit_at = rate.next_permit_at}
  local free = 0
  while free < wanted and next_permit(trial) <= micros do
    use_permit(trial)
    free = free + 1
  end
  return free
end

local timestamp = int_string(now)
local queues = {}
for n, meta in ipairs(KEYS) do
  local base = base_of(meta)
  local values = call('HMGET', meta, 'paused', 'concurrency', 'max', 'duration')
  local own = call('HMGET', settings_key(base), 'weight', 'lease', 'spacing', 'burst_window', 'start_within',
    'next_permit_at')
  promote_due(base, 1000)
  local ready = 0
  if not values[1] then
    ready = call('LLEN', base .. 'wait') + call('ZCARD', base .. 'prioritized')
  end
  local queue = {
    base = base, available = ready, granted = 0, limited = false, cap = values[1] and 0 or math.huge,
    weight = tonumber(own[1]) or 1, lease = tonumber(own[2]) or tonumber(ARGV[7]), max = tonumber(values[3])
  }
  local due = next_due(base)
  if due then
    retry_in(due * 1000 - micros)
  end
  if values[2] then
    queue.limited = true
    queue.cap = math.max(0, math.min(queue.cap, tonumber(values[2]) - call('LLEN', base .. 'active')))
    queue.available = math.min(queue.available, queue.cap)
  end
  if queue.max then
    queue.limited = true
    queue.duration = math.floor(math.abs(tonumber(values[4]) or 0))
    local used = tonumber(call('GET', base .. 'limiter')) or 0
    if used >= queue.max then
      local left = call('PTTL', base .. 'limiter')
      -- Without an end it would limit for ever: a script that was cut off, or a restored copy, has left it so.
      if left == 0 or left == -1 then
        call('DEL', base .. 'limiter')
        used = 0
      elseif left > 0 and queue.available > 0 then
        retry_in(left * 1000 / ttl_factor)
      end
    end
    queue.cap = math.min(queue.cap, math.max(0, queue.max - used))
    queue.available = math.min(queue.available, queue.cap)
  end
  -- queue.rateLimit() and worker.rateLimit() of Node's close a queue for a while by a count that no limit reaches.
  if not queue.max and ready > 0 and (tonumber(call('GET', base .. 'limiter')) or 0) >= 9007199254740991 then
    local left = call('PTTL', base .. 'limiter')
    if left > 0 then
      queue.limited, queue.cap, queue.available = true, 0, 0
      retry_in(left * 1000 / ttl_factor)
    end
  end
  if own[3] then
    queue.limited = true
    queue.rate = {spacing = tonumber(own[3]), burst_window = tonumber(own[4]), start_within = tonumber(own[5]),
      next_permit_at = tonumber(own[6]) or 0}
    -- Written even where nothing is taken: computed from now each time, the permit would move away with every claim.
    local latest = micros + queue.rate.spacing + queue.rate.burst_window
    if queue.rate.next_permit_at > latest then
      queue.rate.next_permit_at = latest
      call('HSET', settings_key(base), 'next_permit_at', int_string(latest))
    end
    queue.ready = ready
    queue.available = available_permits(queue.rate, math.min(queue.available, slots))
  end
  if queue.limited and ARGV[11] == 'marker' and ready > 0 and queue.cap > 0 then
    retry_in(0)
  end
  queues[n] = queue
end

-- Turns: each queue gives as many as it weighs, then the next.
local turn, left = 1, tonumber(ARGV[10])
local function distribute(wanted, also_limited)
  local idle = 0
  while wanted > 0 and idle <= #queues do
    local queue = queues[turn]
    if left == 0 then
      left = queue.weight
    end
    local share = 0
    if also_limited or not queue.limited then
      share = math.min(queue.available - queue.granted, left, wanted)
    end
    if share > 0 then
      queue.granted = queue.granted + share
      wanted = wanted - share
      left = left - share
      idle = 0
    else
      left = 0
      idle = idle + 1
    end
    if left == 0 then
      turn = turn % #queues + 1
    end
  end
  return wanted
end
local unused = distribute(slots, true) + distribute(prefetch_started, false)

local answer = {0, 0, 0, 0, micros}
local taken = 0
local bytes_left = tonumber(ARGV[12])
local is_full = false
-- Put ids back where they were: those from the list to its end, where the next one is, the rest with their scores.
local function put_back(base, ids, first, scores)
  for at = #ids, first, -1 do
    if scores[at] then
      call('ZADD', base .. 'prioritized', scores[at], ids[at])
    else
      call('RPUSH', base .. 'wait', ids[at])
    end
  end
end
for n, queue in ipairs(queues) do
  local base, wanted = queue.base, queue.granted
  if wanted > 0 and not is_full then
    local ids, scores = {}, {}
    local from_wait = math.min(wanted, call('LLEN', base .. 'wait'))
    if from_wait > 0 then
      local tail = call('LRANGE', base .. 'wait', -from_wait, -1)
      call('LTRIM', base .. 'wait', 0, -from_wait - 1)
      for at = #tail, 1, -1 do
        -- Older releases of BullMQ kept markers among the jobs.
        if string.sub(tail[at], 1, 2) ~= '0:' then
          ids[#ids + 1] = tail[at]
        end
      end
    end
    if #ids < wanted then
      local best = call('ZPOPMIN', base .. 'prioritized', wanted - #ids)
      for at = 1, #best, 2 do
        ids[#ids + 1] = best[at]
        scores[#ids] = best[at + 1]
      end
    end
    local lease = int_string(queue.lease * ttl_factor)
    local start_within = queue.rate and queue.rate.start_within or -1
    local counted = 0
    local claimed = {}
    for position, id in ipairs(ids) do
      local key = base .. id
      -- All fields at once: a hash this small is read from end to end for each that is asked for. One that is no hash must not end
      -- the script, or all ids that were taken off the list would be lost.
      local fields = redis.pcall('HGETALL', key)
      local started, is_counted, size = 0, true, 0
      for at = 1, #fields, 2 do
        size = size + #fields[at + 1]
        if fields[at] == 'ats' then
          started = tonumber(fields[at + 1]) or 0
        elseif fields[at] == 'defa' then
          is_counted = false
        end
      end
      if size > bytes_left and taken > 0 then
        -- The next turn is the next queue's: long jobs of one leave room for those of others.
        is_full, turn, left = true, position == 1 and n or n % #queues + 1, 0
        put_back(base, ids, position, scores)
        break
      end
      bytes_left = bytes_left - size
      if fields.err then
        local at = #answer
        answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4], answer[at + 5] = n, id, 0, -1, fields.err
      elseif #fields > 0 then
        taken = taken + 1
        call('SET', key .. ':lock', ARGV[6] .. ':' .. taken, 'PX', lease)
        call('XADD', base .. 'events', '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
        call('HSET', key, 'processedOn', timestamp, 'pb', ARGV[5], 'ats', started + 1)
        claimed[#claimed + 1] = id
        if is_counted then
          counted = counted + 1
        end
        if queue.rate then
          use_permit(queue.rate)
        end
        local at = #answer
        answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = n, id, queue.lease, start_within
        answer[at + 5] = fields
      end
    end
    if #claimed > 0 then
      call('LPUSH', base .. 'active', unpack(claimed))
      add_base_marker(base)
      if queue.max and counted > 0 and call('INCRBY', base .. 'limiter', counted) == counted then
        call('PEXPIRE', base .. 'limiter', int_string(queue.duration * ttl_factor))
      end
      if queue.rate then
        call('HSET', settings_key(base), 'next_permit_at', int_string(queue.rate.next_permit_at))
      end
    end
  end
  if unused > 0 and queue.cap > queue.granted and call('ZCARD', base .. 'prioritized') == 0 then
    call('DEL', base .. 'pc')
  end
  if wanted == 0 and ARGV[11] == 'outcomes' and queue.available == 0 and not next_due(base)
    and not is_paused_or_maxed(base) and call('LLEN', base .. 'wait') == 0 and call('LLEN', base .. 'active') == 0
    and call('ZCARD', base .. 'prioritized') == 0 then
    emit(base, 'drained')
  end
  -- The leader looks for lost jobs in the queues that are registered: in every one that is served here and has active
  -- jobs, those of Node's workers too.
  if call('EXISTS', base .. 'active') == 1 then
    register(base)
  end
  if queue.rate and queue.ready > queue.granted then
    retry_in(next_permit(queue.rate) - micros)
  end
end
if is_full then
  retry_in(0)
end
answer[1] = tonumber(call('GET', onward_root .. 'generation')) or 0
answer[2] = retry_after and math.ceil(retry_after) or -1
answer[3] = turn
answer[4] = left
return answer
