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
local alike = ARGV[5] ~= ''
local step = alike and 1 or 3
local count = (#ARGV - 7) / step
local last = call('INCRBY', base .. 'id', count)
local first = last - count + 1
local priority = tonumber(ARGV[7])
local stamp = whole(now)
local events = base .. 'events'
local ids = {}
for n = 0, count - 1 do
  local at = 8 + n * step
  local id = whole(first + n)
  local name, opts, data = ARGV[5], ARGV[6], ARGV[at]
  if not alike then
    name, opts, data = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  end
  call('HSET', base .. id, 'name', name, 'data', data, 'opts', opts, 'timestamp', stamp, 'delay', '0', 'priority',
    priority)
  call('XADD', events, '*', 'event', 'added', 'jobId', id, 'name', name)
  if priority > 0 then
    put_by_priority(base, id, priority)
  else
    ids[n + 1] = id
  end
  call('XADD', events, '*', 'event', 'waiting', 'jobId', id)
end
if priority == 0 then
  call('LPUSH', line_of(base), unpack(ids))
end
mark_unless_shut(base)
trim(base)
register(base)
return first
