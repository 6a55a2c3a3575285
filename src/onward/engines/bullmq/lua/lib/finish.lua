-- Functions for what follows when a job ends or goes away: its keys, its deduplication, the parent that waits for it.

local function remove_keys(key)
  return call('DEL', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed',
    key .. ':unsuccessful')
end

-- Splits a job's key into its queue's base and its id. A queue's name has no colon; the id of a scheduler's job has
-- several. Under another prefix, whose length is not known here, the last colon counts.
local function split_key(key)
  local id
  if string.sub(key, 1, #root) == root then
    id = string.match(string.sub(key, #root + 1), '^[^:]*:(.*)')
  end
  id = id or string.match(key, '.*:(.*)')
  return string.sub(key, 1, #key - #id), id
end

-- Returns the base and the id of a job's parent: as the job's parent field has them, else from the parent's key.
local function parent_of(parent_json, parent_key)
  local is_valid, parent = pcall(cjson.decode, parent_json or '')
  if is_valid and type(parent) == 'table' and type(parent.queueKey) == 'string' and type(parent.id) == 'string'
    and parent.queueKey .. ':' .. parent.id == parent_key then
    return parent.queueKey .. ':', parent.id
  end
  return split_key(parent_key)
end

-- Frees the idempotency key of a job that goes away.
local function free_idempotency_key(base, id)
  local fields = call('HMGET', base .. id, 'name', 'opts')
  if fields[2] and string.find(fields[2], '"onward"', 1, true) then
    local is_valid, opts = pcall(cjson.decode, fields[2])
    local ours = is_valid and type(opts) == 'table' and opts.onward
    if type(ours) == 'table' and ours.key then
      call('HDEL', onward_root .. 'idempotency_keys', idempotency_field(fields[1], ours.org, ours.key))
    end
  end
end

-- A deduplication without an end of its own ends with the job that it stands for.
local function expire_deduplication(base, id, dedup)
  local key = base .. 'de:' .. dedup
  local left = call('PTTL', key)
  if left == 0 or (left == -1 and call('GET', key) == id) then
    call('DEL', key)
  end
end

local function remove_deduplication(base, id, dedup)
  if dedup and call('GET', base .. 'de:' .. dedup) == id then
    call('DEL', base .. 'de:' .. dedup, base .. 'dn:' .. dedup)
  end
end

-- The last job that was turned away while this one was active (keepLastIfActive) comes in now.
local function add_kept_duplicate(base, dedup)
  local waiting = base .. 'dn:' .. dedup
  if call('EXISTS', waiting) == 0 then
    return
  end
  local stored = call('HMGET', waiting, 'name', 'data', 'opts', 'pk', 'pd', 'pdk', 'rjk', 'jid')
  local number = call('INCR', base .. 'id')
  local id = stored[8] or tostring(number)
  local opts = cjson.decode(stored[3])
  local de = opts.de
  if de and not de.keepLastIfActive and de.ttl and de.ttl > 0 then
    call('SET', base .. 'de:' .. dedup, id, 'PX', int_string(de.ttl * ttl_factor))
  else
    call('SET', base .. 'de:' .. dedup, id)
  end
  local delay, priority = tonumber(opts.delay) or 0, tonumber(opts.priority) or 0
  local fields = {'name', stored[1], 'data', stored[2], 'opts', stored[3], 'timestamp', int_string(now), 'delay', delay,
    'priority', priority}
  local function add(field, value)
    if value then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  add('parentKey', stored[4])
  add('parent', stored[5])
  add('rjk', stored[7])
  add('deid', de and de.id)
  call('HSET', base .. id, unpack(fields))
  emit(base, 'added', 'jobId', id, 'name', stored[1])
  add_to_queue(base, id, priority, opts.lifo, delay, now)
  if stored[6] then
    call('SADD', stored[6], base .. id)
  end
  call('DEL', waiting)
end

-- Parents

local function wake_parent(base, id)
  local values = call('HMGET', base .. id, 'priority', 'delay')
  local priority, delay = tonumber(values[1]) or 0, tonumber(values[2]) or 0
  if delay > 0 then
    -- The delay that a parent was given counts from when its children are done.
    local due = now + delay
    call('ZADD', base .. 'delayed', int_string(due * 4096), id)
    emit(base, 'delayed', 'jobId', id, 'delay', int_string(due))
    add_delay_marker(base)
    return
  end
  make_ready(base, id, priority, 'RPUSH')
  add_base_marker_if_needed(base)
  emit(base, 'waiting', 'jobId', id, 'prev', 'waiting-children')
end

local function wake_parent_if_waiting(base, id)
  if call('EXISTS', base .. id) == 1 and call('ZREM', base .. 'waiting-children', id) == 1 then
    wake_parent(base, id)
  end
end

local function wake_parent_if_done(base, id)
  if call('SCARD', base .. id .. ':dependencies') == 0 then
    wake_parent_if_waiting(base, id)
  end
end

-- The parent cannot be done any more: it comes to a worker at once, to be failed there.
local function fail_parent(base, id, child)
  if call('EXISTS', base .. id) == 0 then
    return
  end
  local was_waiting = call('ZREM', base .. 'waiting-children', id) == 1
  if not was_waiting and call('ZREM', base .. 'delayed', id) == 1 then
    call('HSET', base .. id, 'delay', 0)
    was_waiting = true
  end
  if was_waiting or not call('ZSCORE', base .. 'failed', id) then
    call('HSET', base .. id, 'defa', 'child ' .. child .. ' failed')
  end
  if was_waiting then
    wake_parent(base, id)
  end
end

local function complete_child(parent_json, parent_key, child, result)
  local base, id = parent_of(parent_json, parent_key)
  if call('SREM', parent_key .. ':dependencies', child) == 1 then
    call('HSET', parent_key .. ':processed', child, result)
    wake_parent_if_done(base, id)
  end
end

local function fail_child(parent_json, child, reason)
  local is_valid, parent = pcall(cjson.decode, parent_json)
  if not is_valid or type(parent) ~= 'table' or type(parent.queueKey) ~= 'string' or type(parent.id) ~= 'string' then
    return
  end
  local base, id = parent.queueKey .. ':', parent.id
  local key = base .. id
  if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
    return
  end
  if call('SREM', key .. ':dependencies', child) == 0 then
    return
  end
  if parent.fpof then
    call('ZADD', key .. ':unsuccessful', int_string(now), child)
    fail_parent(base, id, child)
  elseif parent.cpof then
    call('HSET', key .. ':failed', child, reason)
    wake_parent_if_waiting(base, id)
  else
    wake_parent_if_done(base, id)
    if parent.idof then
      call('HSET', key .. ':failed', child, reason)
    end
  end
end

-- A child that goes away is waited for no longer. Its parent, if it waited for nothing else, is ready; and where a
-- whole queue (its base) is being emptied, a parent in that queue goes too.
local detach_from_parent
detach_from_parent = function(key, emptied_base)
  local values = call('HMGET', key, 'parentKey', 'deid', 'parent')
  local parent_key = values[1]
  if not parent_key or parent_key == '' or call('EXISTS', parent_key) == 0
    or call('SREM', parent_key .. ':dependencies', key) == 0 then
    return
  end
  local base, id = parent_of(values[3], parent_key)
  if call('SCARD', parent_key .. ':dependencies') > 0 or call('ZREM', base .. 'waiting-children', id) == 0 then
    return
  end
  if base == emptied_base then
    detach_from_parent(parent_key, emptied_base)
    remove_keys(parent_key)
    if values[2] then
      call('DEL', base .. 'de:' .. values[2])
    end
    return
  end
  call('RPUSH', wait_list_of(base), id)
  add_base_marker_if_needed(base)
  if not emptied_base then
    emit(base, 'waiting', 'jobId', id, 'prev', 'waiting-children')
  end
end

-- Removes a finished job that is not kept any longer, out of its set already.
local function remove_finished_job(base, id)
  detach_from_parent(base .. id)
  free_idempotency_key(base, id)
  remove_keys(base .. id)
end

-- Removes a job that a queue is emptied of, out of its place already.
local function purge_job(base, id)
  detach_from_parent(base .. id, base)
  remove_deduplication(base, id, call('HGET', base .. id, 'deid'))
  free_idempotency_key(base, id)
  remove_keys(base .. id)
end

-- The job that a scheduler has made last: without it the schedule would end.
local function is_next_of_scheduler(base, id)
  local scheduler = call('HGET', base .. id, 'rjk')
  local due = scheduler and call('ZSCORE', base .. 'repeat', scheduler)
  return due and id == 'repeat:' .. scheduler .. ':' .. due or false
end

local function remove_from_location(base, id)
  for _, location in ipairs({'completed', 'waiting-children', 'delayed', 'failed', 'prioritized'}) do
    if call('ZREM', base .. location, id) == 1 then
      return location
    end
  end
  for _, location in ipairs({'wait', 'paused', 'active'}) do
    if call('LREM', base .. location, 1, id) == 1 then
      return location
    end
  end
end

-- Whether a job, or one that it waits for, at any depth, is held.
local is_locked
is_locked = function(key)
  if call('EXISTS', key .. ':lock') == 1 then
    return true
  end
  for _, child in ipairs(call('SMEMBERS', key .. ':dependencies')) do
    if is_locked(child) then
      return true
    end
  end
  return false
end

-- Removes a job wherever it is, and the jobs that were done for it, and says where it was; nil: there is none.
-- which: 'all' of its children, or only those that are 'waiting'.
local remove_job
remove_job = function(base, id, which)
  local key = base .. id
  detach_from_parent(key)
  local children = {}
  local function add(keys)
    for _, child in ipairs(keys) do
      children[#children + 1] = child
    end
  end
  if which == 'all' then
    add(call('HKEYS', key .. ':processed'))
    add(call('HKEYS', key .. ':failed'))
    add(call('ZRANGE', key .. ':unsuccessful', 0, -1))
  end
  add(call('SMEMBERS', key .. ':dependencies'))
  for _, child in ipairs(children) do
    local child_base, child_id = split_key(child)
    local is_removed = which == 'all'
      or call('EXISTS', child .. ':lock') == 0 and not call('ZSCORE', child_base .. 'failed', child_id)
    if is_removed then
      remove_job(child_base, child_id, which)
    end
  end
  local was = remove_from_location(base, id)
  remove_deduplication(base, id, call('HGET', key, 'deid'))
  free_idempotency_key(base, id)
  if remove_keys(key) > 0 then
    emit(base, 'removed', 'jobId', id, 'prev', was or 'unknown')
  end
  return was
end

-- How long finished jobs are kept, as the job's own options say: how many (0: none, -1: all), and for how long.
local function retention_of(option)
  if option == nil or option == false or option == cjson.null then
    return -1
  elseif option == true then
    return 0
  elseif type(option) == 'number' then
    return option
  end
  return tonumber(option.count), tonumber(option.age), tonumber(option.limit) or 1000
end

local function apply_retention(base, set, count, age, limit)
  local key = base .. set
  if age then
    local start = int_string(now - age * 1000)
    local old = call('ZREVRANGEBYSCORE', key, start, '-inf', 'LIMIT', 0, limit)
    for _, id in ipairs(old) do
      remove_finished_job(base, id)
      call('ZREM', key, id)
    end
  end
  if count and count > 0 then
    local over = call('ZREVRANGE', key, count, -1)
    for _, id in ipairs(over) do
      remove_finished_job(base, id)
    end
    if #over > 0 then
      call('ZREMRANGEBYRANK', key, 0, -(count + 1))
    end
  end
end
