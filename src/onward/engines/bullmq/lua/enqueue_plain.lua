-- Adds jobs to one queue that have nothing but a name, data and options: the hot path.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  a name for all, or '' for one each
-- ARGV[6]  options for all (JSON)
-- ARGV[7]  the priority of all, as BullMQ counts
-- ARGV[8…] the data of each (JSON); where each has a name: name, options, data
-- Answers the number of the first job; the others follow.

local base = base_of(KEYS[1])
local is_uniform = ARGV[5] ~= ''
local step = is_uniform and 1 or 3
local count = (#ARGV - 7) / step
local last = call('INCRBY', base .. 'id', count)
local first = last - count + 1
local priority = tonumber(ARGV[7])
local timestamp = int_string(now)
local events = base .. 'events'
local ids = {}
for n = 0, count - 1 do
  local at = 8 + n * step
  local id = int_string(first + n)
  local name, opts, data = ARGV[5], ARGV[6], ARGV[at]
  if not is_uniform then
    name, opts, data = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  end
  call('HSET', base .. id, 'name', name, 'data', data, 'opts', opts, 'timestamp', timestamp, 'delay', '0', 'priority',
    priority)
  call('XADD', events, '*', 'event', 'added', 'jobId', id, 'name', name)
  if priority > 0 then
    add_prioritized(base, id, priority)
  else
    ids[n + 1] = id
  end
  call('XADD', events, '*', 'event', 'waiting', 'jobId', id)
end
if priority == 0 then
  call('LPUSH', wait_list_of(base), unpack(ids))
end
add_base_marker_if_needed(base)
trim_events(base)
register(base)
return first
