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
-- Answers {the generation of names, microseconds until something comes by itself or -1, whose turn is next (its number
-- among KEYS), what is left of that turn, the time in microseconds, then for each job: the number of its queue, its id, the lease,
-- microseconds within which it must start or -1, its fields (HGETALL)}.

local slots, soon = tonumber(ARGV[8]), tonumber(ARGV[9])
local again
local function come_again(micros_from_now)
  if micros_from_now and (not again or micros_from_now < again) then
    again = math.max(micros_from_now, 0)
  end
end

-- Slots that a paced queue has free: each job moves the next slot on, and one that comes late for its slot may be
-- followed sooner, within the slack.
local function next_slot(pace, slot)
  return math.min(slot, micros + pace.spacing + pace.reach) - pace.reach
end
local function use_slot(pace)
  pace.slot = math.max(next_slot(pace, pace.slot) + pace.reach, micros - pace.late) + pace.spacing
end
local function free_slots(pace, wanted)
  local trial = {spacing = pace.spacing, reach = pace.reach, late = pace.late, slot = pace.slot}
  local free = 0
  while free < wanted and next_slot(trial, trial.slot) <= micros do
    use_slot(trial)
    free = free + 1
  end
  return free
end

local stamp = whole(now)
local queues = {}
for n, meta in ipairs(KEYS) do
  local base = base_of(meta)
  local said = call('HMGET', meta, 'paused', 'concurrency', 'max', 'duration')
  local own = call('HMGET', own_of(base), 'weight', 'lease', 'spacing', 'reach', 'late', 'slot')
  promote_due(base, 1000)
  local ready = 0
  if not said[1] then
    ready = call('LLEN', base .. 'wait') + call('ZCARD', base .. 'prioritized')
  end
  local queue = {
    base = base, room = ready, given = 0, limited = false, cap = said[1] and 0 or math.huge,
    weight = tonumber(own[1]) or 1, lease = tonumber(own[2]) or tonumber(ARGV[7]), max = tonumber(said[3])
  }
  local due = next_due(base)
  if due then
    come_again(due * 1000 - micros)
  end
  if said[2] then
    queue.limited = true
    queue.cap = math.max(0, math.min(queue.cap, tonumber(said[2]) - call('LLEN', base .. 'active')))
    queue.room = math.min(queue.room, queue.cap)
  end
  if queue.max then
    queue.limited = true
    queue.duration = math.floor(math.abs(tonumber(said[4]) or 0))
    local used = tonumber(call('GET', base .. 'limiter')) or 0
    if used >= queue.max then
      local left = call('PTTL', base .. 'limiter')
      if left == 0 then
        call('DEL', base .. 'limiter')
        used = 0
      elseif left > 0 and queue.room > 0 then
        come_again(left * 1000 / stretch)
      end
    end
    queue.cap = math.min(queue.cap, math.max(0, queue.max - used))
    queue.room = math.min(queue.room, queue.cap)
  end
  if own[3] then
    queue.limited = true
    queue.pace = {spacing = tonumber(own[3]), reach = tonumber(own[4]), late = tonumber(own[5]),
      slot = tonumber(own[6]) or 0}
    queue.open = ready
    queue.room = free_slots(queue.pace, math.min(queue.room, slots))
  end
  if queue.limited and ARGV[11] == 'marker' and ready > 0 and queue.cap > 0 then
    come_again(0)
  end
  queues[n] = queue
end

-- Turns: each queue gives as many as it weighs, then the next.
local turn, left = 1, tonumber(ARGV[10])
local function share_out(wanted, also_limited)
  local idle = 0
  while wanted > 0 and idle <= #queues do
    local queue = queues[turn]
    if left == 0 then
      left = queue.weight
    end
    local may = 0
    if also_limited or not queue.limited then
      may = math.min(queue.room - queue.given, left, wanted)
    end
    if may > 0 then
      queue.given = queue.given + may
      wanted = wanted - may
      left = left - may
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
local unused = share_out(slots, true) + share_out(soon, false)

local answer = {0, 0, 0, 0, micros}
local taken = 0
for n, queue in ipairs(queues) do
  local base, wanted = queue.base, queue.given
  if wanted > 0 then
    local ids = {}
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
      end
    end
    local lease = whole(queue.lease * stretch)
    local within = queue.pace and queue.pace.late or -1
    local counted = 0
    local held = {}
    for _, id in ipairs(ids) do
      local key = base .. id
      -- All fields at once: a hash this small is read from end to end for each that is asked for.
      local fields = call('HGETALL', key)
      local started, is_counted = 0, true
      for at = 1, #fields, 2 do
        if fields[at] == 'ats' then
          started = tonumber(fields[at + 1]) or 0
        elseif fields[at] == 'defa' then
          is_counted = false
        end
      end
      if #fields > 0 then
        taken = taken + 1
        call('SET', key .. ':lock', ARGV[6] .. ':' .. taken, 'PX', lease)
        call('XADD', base .. 'events', '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
        call('HSET', key, 'processedOn', stamp, 'pb', ARGV[5], 'ats', started + 1)
        held[#held + 1] = id
        if is_counted then
          counted = counted + 1
        end
        if queue.pace then
          use_slot(queue.pace)
        end
        local at = #answer
        answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = n, id, queue.lease, within
        answer[at + 5] = fields
      end
    end
    if #held > 0 then
      call('LPUSH', base .. 'active', unpack(held))
      mark(base)
      if queue.max and counted > 0 and call('INCRBY', base .. 'limiter', counted) == counted then
        call('PEXPIRE', base .. 'limiter', whole(queue.duration * stretch))
      end
      if queue.pace then
        call('HSET', own_of(base), 'slot', whole(queue.pace.slot))
      end
    end
  end
  if unused > 0 and queue.cap > queue.given and call('ZCARD', base .. 'prioritized') == 0 then
    call('DEL', base .. 'pc')
  end
  if wanted == 0 and ARGV[11] == 'outcomes' and queue.room == 0 and not next_due(base) and not is_shut(base)
    and call('LLEN', base .. 'wait') == 0 and call('LLEN', base .. 'active') == 0
    and call('ZCARD', base .. 'prioritized') == 0 then
    tell(base, 'drained')
  end
  if queue.pace and queue.open > queue.given then
    come_again(next_slot(queue.pace, queue.pace.slot) - micros)
  end
end
answer[1] = tonumber(call('GET', home .. 'generation')) or 0
answer[2] = again and math.ceil(again) or -1
answer[3] = turn
answer[4] = left
return answer
