-- Records how runs of one queue's jobs ended. Each matches the job's lock: a lost one changes nothing.
--
-- uses: queue finish
-- KEYS[1]   the queue's meta
-- ARGV[5]   '1': a claim follows, which says whether the queue has run dry
-- ARGV[6]   how many points of metrics to keep, '' to count only where Node's workers do
-- ARGV[7…]  for each: id, token, verb, then two values:
--             complete  the result (JSON)      ''
--             fail      the reason             the stack (JSON text), '' for none
--             retry     the reason             the stack; and the delay in milliseconds before both: see below
--             snooze    the delay in milliseconds  ''
--             release   ''                     ''
--             cancel    ''                     ''
--           A retry's first value is its delay and its reason, joined by a colon.
-- Answers the positions, from 1, of those that were lost.

local base = base_of(KEYS[1])
local active, stalled = base .. 'active', base .. 'stalled'
local locks, lost, unlocked, unstalled, completed = {}, {}, {}, {}, {}
local children = {}
local has_immediate_retry = false
for at = 7, #ARGV, 5 do
  local key = base .. ARGV[at]
  has_immediate_retry = has_immediate_retry or ARGV[at + 2] == 'retry' and string.sub(ARGV[at + 3], 1, 2) == '0:'
  locks[#locks + 1] = key .. ':lock'
  children[#children + 1] = key .. ':dependencies'
  children[#children + 1] = key .. ':unsuccessful'
end
-- Whoever is tried again at once stands behind those whose time has come meanwhile.
if has_immediate_retry then
  promote_due(base, 1000)
end
local tokens = call('MGET', unpack(locks))
-- Hardly any job has children: one question for all.
local has_children = call('EXISTS', unpack(children)) > 0
local timestamp = int_string(now)
local has_finished = false

-- What ends together was mostly taken together, and stands together at the end of the list: then it is cut off at once.
local function trim_together()
  local last = {}
  for _, id in ipairs(call('LRANGE', active, -#locks, -1)) do
    last[id] = true
  end
  for n = 1, #locks do
    local id = ARGV[2 + n * 5]
    if tokens[n] ~= ARGV[3 + n * 5] or not last[id] then
      return false
    end
    last[id] = nil
  end
  call('LTRIM', active, 0, -#locks - 1)
  return true
end
local are_trimmed = #locks > 1 and trim_together()

-- Node's workers keep as many points as each was told, which is not on record. Where they count, so do we, and leave it
-- to them to cut the list shorter than two weeks, the most that BullMQ has a name for.
local max_points = tonumber(ARGV[6])
if not max_points and call('EXISTS', base .. 'metrics:completed', base .. 'metrics:failed') > 0 then
  max_points = 20160
end

local function count_metric(kind)
  local key = base .. 'metrics:' .. kind
  local before = call('HINCRBY', key, 'count', 1) - 1
  local values = call('HMGET', key, 'prevTS', 'prevCount')
  if not values[1] then
    call('HSET', key, 'prevTS', timestamp, 'prevCount', 0)
    return
  end
  local minutes = math.min(math.floor(now / 60000) - math.floor(tonumber(values[1]) / 60000), max_points)
  if minutes > 0 then
    call('LPUSH', key .. ':data', before - tonumber(values[2]))
    for _ = 2, minutes do
      call('LPUSH', key .. ':data', 0)
    end
    call('LTRIM', key .. ':data', 0, max_points - 1)
    call('HSET', key, 'prevCount', before, 'prevTS', timestamp)
  end
end

-- Damaged options say nothing: an outcome must not be lost over them.
local function read_options(text)
  local is_valid, values = pcall(cjson.decode, text)
  return is_valid and type(values) == 'table' and values or {}
end

local function with_stack(key, entry, opts)
  local stack = call('HGET', key, 'stacktrace')
  local limit = string.find(opts or '', 'stackTraceLimit', 1, true) and tonumber(read_options(opts).stackTraceLimit)
  if limit then
    if limit == 0 then
      return '[]'
    end
    local entries = read_options(stack)
    entries[#entries + 1] = cjson.decode(entry)
    while #entries > limit do
      table.remove(entries, 1)
    end
    return cjson.encode(entries)
  end
  if not stack or stack == '[]' then
    return '[' .. entry .. ']'
  end
  return string.sub(stack, 1, -2) .. ',' .. entry .. ']'
end

local function finish(id, key, fields, verb, value, stack)
  local has_completed = verb == 'complete'
  local set = has_completed and 'completed' or 'failed'
  local field = has_completed and 'returnvalue' or 'failedReason'
  local opts = fields[1]
  if fields[3] then
    expire_deduplication(base, id, fields[3])
    add_kept_duplicate(base, fields[3])
  end
  if fields[2] and fields[2] ~= '' then
    local parent = call('HGET', key, 'parent')
    if has_completed then
      complete_child(parent, fields[2], key, value)
    elseif parent then
      fail_child(parent, key, value)
    end
  end
  local attempts = (tonumber(fields[4]) or 0) + 1
  local count, age, limit = -1, nil, nil
  local option = has_completed and 'removeOnComplete' or 'removeOnFail'
  if string.find(opts, option, 1, true) then
    count, age, limit = retention_of(read_options(opts)[option])
  end
  if count == 0 then
    remove_finished_job(base, id)
  else
    call('HSET', key, field, value, 'finishedOn', timestamp, 'atm', attempts)
    if has_completed and count == -1 then
      completed[#completed + 1] = timestamp
      completed[#completed + 1] = id
    else
      call('ZADD', base .. set, timestamp, id)
    end
    if not has_completed then
      if stack then
        call('HSET', key, 'stacktrace', stack)
      end
      call('HDEL', key, 'defa')
    end
    if count ~= -1 or age then
      if #completed > 0 then
        call('ZADD', base .. 'completed', unpack(completed))
        completed = {}
      end
      apply_retention(base, set, count, age, limit)
    end
  end
  emit(base, set, 'jobId', id, field, value, 'prev', 'active')
  if not has_completed then
    if attempts >= (tonumber(read_options(opts).attempts) or 0) then
      emit(base, 'retries-exhausted', 'jobId', id, 'attemptsMade', attempts)
    end
  end
  if max_points then
    count_metric(set)
  end
  has_finished = true
end

for n = 1, #locks do
  local at = 2 + n * 5
  local id, token, verb, value, stack = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local key = base .. id
  local fields = tokens[n] == token and call('HMGET', key, 'opts', 'parentKey', 'deid', 'atm')
  if not fields or not (fields[1] or call('EXISTS', key) == 1)
    or not (are_trimmed or call('LREM', active, -1, id) == 1) then
    lost[#lost + 1] = n
  else
    tokens[n] = false
    unlocked[#unlocked + 1] = key .. ':lock'
    unstalled[#unstalled + 1] = id
    fields[1] = fields[1] or '{}'
    local opts = fields[1]
    if has_children and verb == 'complete' then
      if call('SCARD', key .. ':dependencies') > 0 then
        verb, value, stack = 'fail', 'Job ' .. id .. ' has pending dependencies', ''
      elseif call('ZCARD', key .. ':unsuccessful') > 0 then
        verb, value, stack = 'fail', 'Job ' .. id .. ' has at least one failed child', ''
      end
    end
    if verb == 'complete' then
      finish(id, key, fields, verb, value)
    elseif verb == 'fail' then
      finish(id, key, fields, verb, value, stack ~= '' and with_stack(key, stack, opts))
    elseif verb == 'cancel' then
      call('LPUSH', active, id)
      remove_job(base, id, 'waiting')
    else
      local priority = tonumber(call('HGET', key, 'priority')) or 0
      if verb == 'retry' then
        local delay, reason = string.match(value, '^(%d+):(.*)$')
        delay = tonumber(delay)
        call('HSET', key, 'failedReason', reason, 'atm', (tonumber(fields[4]) or 0) + 1)
        if stack ~= '' then
          call('HSET', key, 'stacktrace', with_stack(key, stack, opts))
        end
        if delay > 0 then
          call('HSET', key, 'delay', int_string(delay))
          delay_until(base, id, now + delay)
          add_delay_marker(base)
        else
          make_ready(base, id, priority, is_lifo(opts) and 'RPUSH' or 'LPUSH')
          add_base_marker_if_needed(base)
          emit(base, 'waiting', 'jobId', id, 'prev', 'active')
        end
      elseif verb == 'snooze' then
        call('HSET', key, 'delay', value)
        delay_until(base, id, now + tonumber(value))
        add_delay_marker(base)
      else
        -- Given back: to the head of its line.
        if priority > 0 then
          call('ZADD', base .. 'prioritized', priority * 4294967296, id)
        else
          call('RPUSH', wait_list_of(base), id)
        end
        add_base_marker_if_needed(base)
        emit(base, 'waiting', 'jobId', id, 'prev', 'active')
      end
    end
  end
end
if #completed > 0 then
  call('ZADD', base .. 'completed', unpack(completed))
end
if #unlocked > 0 then
  call('DEL', unpack(unlocked))
  call('SREM', stalled, unpack(unstalled))
  trim_events(base)
end
if has_finished and ARGV[5] ~= '1' and call('LLEN', base .. 'wait') == 0 and call('LLEN', active) == 0
  and call('ZCARD', base .. 'prioritized') == 0 then
  emit(base, 'drained')
end
return lost
