-- Adds jobs of any kind, of any queues, all in one step.
--
-- uses: queue finish
-- KEYS[n]  the meta of each queue
-- ARGV[5]  how many queues there are among KEYS
-- ARGV[6…] for each job, fourteen values, '' where there is none:
--            1 the number of its queue among KEYS   2 name   3 data (JSON)   4 options (JSON, without delay)
--            5 delay in milliseconds   6 or the moment, in milliseconds since 1970   7 priority, as BullMQ counts
--            8 deduplication (JSON: id, ttl, extend, replace, keepLastIfActive, reschedule)   9 an id of its own
--            10 '1': lifo
--            11 idempotency key   12 parent (JSON: id, queueKey, what its failure does)   13 scheduler
--            14 '1': has children, and waits for them
-- Answers for each {'inserted', its id}, {'same_key', queue, id}, {'deduped', id} or {'duplicated', id}; or, when one has
-- a parent that cannot be, nothing but {{'refused', the number of that job, why}}, and nothing is done.

local WIDTH = 14
local changed_queues = {}
-- Parents that this call has made, by their keys: they have all their children only at its end.
local added_parents = {}

local function set_deduplication(key, id, de)
  if not de.keepLastIfActive and de.ttl and de.ttl > 0 then
    call('SET', key, id, 'PX', int_string(de.ttl * ttl_factor))
  else
    call('SET', key, id)
  end
end

-- Says which job stands for this one already; nil: none, and this one stands for the rest from now on.
local function deduplicate(base, id, de, job)
  local key, next_key = base .. 'de:' .. de.id, base .. 'dn:' .. de.id
  local existing = call('GET', key)
  if not existing then
    set_deduplication(key, id, de)
    return nil
  end
  if de.replace and not job.is_parent and call('ZREM', base .. 'delayed', existing) == 1 then
    remove_keys(base .. existing)
    emit(base, 'removed', 'jobId', existing, 'prev', 'delayed')
    emit(base, 'deduplicated', 'jobId', id, 'deduplicationId', de.id, 'deduplicatedJobId', existing)
    call('DEL', next_key)
    if not de.keepLastIfActive and not de.extend and de.ttl and de.ttl > 0 then
      call('SET', key, id, 'KEEPTTL')
    else
      set_deduplication(key, id, de)
    end
    return nil
  end
  if call('PTTL', key) == -1 and call('EXISTS', base .. existing) == 0 then
    -- Its owner went away without it.
    call('DEL', key, next_key)
    set_deduplication(key, id, de)
    return nil
  end
  local is_kept = false
  if de.keepLastIfActive and call('LPOS', base .. 'active', existing) then
    call('DEL', next_key)
    local fields = {'name', job.name, 'data', job.data, 'opts', job.opts, 'jid', id}
    local function add(field, value)
      if value then
        fields[#fields + 1] = field
        fields[#fields + 1] = value
      end
    end
    add('pk', job.parent_key)
    add('pd', job.parent)
    add('pdk', job.parent_key and job.parent_key .. ':dependencies')
    add('rjk', job.scheduler)
    call('HSET', next_key, unpack(fields))
    call('PERSIST', key)
    is_kept = true
  elseif de.extend and not de.replace and de.ttl and de.ttl > 0 then
    set_deduplication(key, existing, de)
  end
  if is_kept or not de.replace then
    emit(base, 'deduplicated', 'jobId', existing, 'deduplicationId', de.id, 'deduplicatedJobId', id)
  end
  if de.reschedule and not de.replace and not job.is_parent and call('ZSCORE', base .. 'delayed', existing) then
    call('HSET', base .. existing, 'delay', int_string(job.delay))
    delay_until(base, existing, now + job.delay)
    add_delay_marker(base)
  end
  return existing
end

-- The job that an idempotency key stands for, as long as it is kept.
local function find_by_idempotency_key(name, org, key)
  local field = idempotency_field(name, org, key)
  local found = call('HGET', onward_root .. 'idempotency_keys', field)
  if found then
    local queue, id = string.match(found, '^([^\n]*)\n(.*)$')
    local fields = call('HMGET', root .. queue .. ':' .. id, 'name', 'opts')
    if fields[1] == name and fields[2] then
      local is_valid, opts = pcall(cjson.decode, fields[2])
      if is_valid and type(opts.onward) == 'table' and opts.onward.key == key and opts.onward.org == org then
        return field, queue, id
      end
    end
  end
  return field
end

local function add(at)
  local base = base_of(KEYS[tonumber(ARGV[at])])
  local name, data, opts = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local priority = tonumber(ARGV[at + 6]) or 0
  local key_field
  if ARGV[at + 10] ~= '' then
    local field, queue, existing = find_by_idempotency_key(name, cjson.decode(opts).onward.org, ARGV[at + 10])
    if existing then
      return {'same_key', queue, existing}
    end
    key_field = field
  end
  local parent = ARGV[at + 11] ~= '' and ARGV[at + 11] or nil
  local parent_key
  if parent then
    local read = cjson.decode(parent)
    parent_key = read.queueKey .. ':' .. read.id
  end
  local delay = tonumber(ARGV[at + 4]) or 0
  if ARGV[at + 5] ~= '' then
    delay = math.max(0, tonumber(ARGV[at + 5]) - now)
  end
  if delay > 0 then
    opts = '{"delay":' .. int_string(delay) .. (opts == '{}' and '}' or ',' .. string.sub(opts, 2))
  end
  local number = call('INCR', base .. 'id')
  local id = ARGV[at + 8]
  changed_queues[base] = true
  if id == '' then
    id = int_string(number)
  elseif call('EXISTS', base .. id) == 1 then
    local key = base .. id
    if parent_key then
      if call('ZSCORE', base .. 'completed', id) then
        call('HSET', parent_key .. ':processed', key, call('HGET', key, 'returnvalue') or 'null')
        if not added_parents[parent_key] then
          wake_parent_if_done(parent_of(parent, parent_key))
        end
      else
        call('SADD', parent_key .. ':dependencies', key)
      end
      call('HSET', key, 'parentKey', parent_key, 'parent', parent)
    end
    emit(base, 'duplicated', 'jobId', id)
    return {'duplicated', id}
  end
  local de = ARGV[at + 7] ~= '' and cjson.decode(ARGV[at + 7])
  local scheduler = ARGV[at + 12] ~= '' and ARGV[at + 12] or nil
  if de then
    local existing = deduplicate(base, id, de, {
      name = name, data = data, opts = opts, parent = parent, parent_key = parent_key, scheduler = scheduler,
      delay = delay, is_parent = ARGV[at + 13] == '1'
    })
    if existing then
      return {'deduped', existing}
    end
  end
  local fields = {'name', name, 'data', data, 'opts', opts, 'timestamp', int_string(now), 'delay',
    int_string(delay), 'priority', priority}
  local function field(label, value)
    if value then
      fields[#fields + 1] = label
      fields[#fields + 1] = value
    end
  end
  field('parentKey', parent_key)
  field('parent', parent)
  field('rjk', scheduler)
  field('deid', de and de.id)
  call('HSET', base .. id, unpack(fields))
  emit(base, 'added', 'jobId', id, 'name', name)
  if ARGV[at + 13] == '1' then
    added_parents[base .. id] = {base, id}
    call('ZADD', base .. 'waiting-children', int_string(now), id)
    emit(base, 'waiting-children', 'jobId', id)
  elseif delay > 0 then
    delay_until(base, id, now + delay)
    add_delay_marker(base)
  else
    make_ready(base, id, priority, ARGV[at + 9] == '1' and 'RPUSH' or 'LPUSH')
    add_base_marker_if_needed(base)
    emit(base, 'waiting', 'jobId', id)
  end
  if parent_key then
    call('SADD', parent_key .. ':dependencies', base .. id)
  end
  if key_field then
    call('HSET', onward_root .. 'idempotency_keys', key_field, name_of(base) .. '\n' .. id)
  end
  return {'inserted', id}
end

-- Says why a job cannot have its parent; nil: it can. coming: parents that this call is about to make.
local function parent_error(at, new_parents)
  local base, id = base_of(KEYS[tonumber(ARGV[at])]), ARGV[at + 8]
  if ARGV[at + 13] == '1' then
    new_parents[base .. id] = true
  end
  if ARGV[at + 11] == '' then
    return nil
  end
  local parent = cjson.decode(ARGV[at + 11])
  local parent_key = parent.queueKey .. ':' .. parent.id
  if not new_parents[parent_key] and call('EXISTS', parent_key) == 0 then
    return 'there is no job ' .. parent_key
  end
  local current_parent = id ~= '' and call('HGET', base .. id, 'parentKey')
  if current_parent and current_parent ~= parent_key and call('EXISTS', current_parent) == 1 then
    return 'job ' .. id .. ' has another parent, ' .. current_parent
  end
end

local new_parents = {}
for at = 6, #ARGV, WIDTH do
  local reason = parent_error(at, new_parents)
  if reason then
    return {{'refused', tostring((at - 6) / WIDTH), reason}}
  end
end
local answers = {}
for at = 6, #ARGV, WIDTH do
  answers[#answers + 1] = add(at)
end
for _, parent in pairs(added_parents) do
  wake_parent_if_done(parent[1], parent[2])
end
for base in pairs(changed_queues) do
  trim_events(base)
  register(base)
end
return answers
