-- Changes a job that waits.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the job's id
-- ARGV[6]  its options as they were read: if they have changed since, nothing is done
-- ARGV[7]  new options (JSON), '' for the same
-- ARGV[8]  new data (JSON), '' for the same
-- ARGV[9]  a new priority, as BullMQ counts, '' for the same
-- ARGV[10] a new time, in milliseconds since 1970, '' for the same
-- Answers 1; 0: it does not wait, or there is none; -1: its options have changed.

local base = base_of(KEYS[1])
local id = ARGV[5]
local key = base .. id
local fields = call('HMGET', key, 'opts', 'priority')
if not fields[1] then
  return 0
end
local where
for _, location in ipairs({'delayed', 'prioritized', 'waiting-children'}) do
  if call('ZSCORE', base .. location, id) then
    where = location
  end
end
if not where then
  for _, location in ipairs({'wait', 'paused'}) do
    if call('LPOS', base .. location, id) then
      where = location
    end
  end
end
if not where then
  return 0
end
if fields[1] ~= ARGV[6] then
  return -1
end
if ARGV[7] ~= '' then
  call('HSET', key, 'opts', ARGV[7])
end
if ARGV[8] ~= '' then
  call('HSET', key, 'data', ARGV[8])
end
local priority = tonumber(fields[2]) or 0
local is_ready = where == 'prioritized' or where == 'wait' or where == 'paused'
local function remove_from_location()
  if where == 'prioritized' or where == 'delayed' then
    call('ZREM', base .. where, id)
  else
    call('LREM', base .. where, -1, id)
  end
end
if ARGV[9] ~= '' then
  priority = tonumber(ARGV[9])
  call('HSET', key, 'priority', priority)
  if is_ready then
    remove_from_location()
    make_ready(base, id, priority, 'LPUSH')
    add_base_marker_if_needed(base)
    where = priority > 0 and 'prioritized' or where == 'paused' and 'paused' or 'wait'
  end
end
if ARGV[10] ~= '' and where ~= 'waiting-children' then
  local due = tonumber(ARGV[10])
  -- Put off anew, it keeps its place until it has another: the score that it gets depends on it, here as in BullMQ.
  if due <= now or where ~= 'delayed' then
    remove_from_location()
  end
  if due > now then
    call('HSET', key, 'delay', int_string(due - now))
    delay_until(base, id, due)
    add_delay_marker(base)
  else
    call('HSET', key, 'delay', 0)
    make_ready(base, id, priority, 'LPUSH')
    add_base_marker_if_needed(base)
    emit(base, 'waiting', 'jobId', id, 'prev', where)
  end
end
return 1
