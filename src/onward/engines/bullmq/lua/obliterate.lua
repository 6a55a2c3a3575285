-- Removes a paused queue with all that is in it, some jobs at a time.
--
-- uses: queue finish
-- KEYS[1]  the queue's meta
-- ARGV[5]  how many at most
-- ARGV[6]  '1': also while jobs are active, which are taken from their workers
-- Answers 'done', 'more', 'active' where jobs are active, or 'open' where it is not paused.

local base = base_of(KEYS[1])
local left = tonumber(ARGV[5])
if call('HEXISTS', KEYS[1], 'paused') == 0 then
  return 'open'
elseif ARGV[6] ~= '1' and call('EXISTS', base .. 'active') == 1 then
  return 'active'
end
local locations = {'active', 'delayed', 'waiting-children', 'completed', 'wait', 'paused', 'prioritized', 'failed'}
for _, location in ipairs(locations) do
  local key = base .. location
  local is_list = location == 'active' or location == 'wait' or location == 'paused'
  local ids = is_list and call('LRANGE', key, 0, left - 1) or call('ZRANGE', key, 0, left - 1)
  for _, id in ipairs(ids) do
    if is_list then
      call('LPOP', key)
    else
      call('ZREM', key, id)
    end
    call('DEL', base .. id .. ':lock')
    purge_job(base, id)
  end
  left = left - #ids
  if left == 0 then
    return 'more'
  end
end
for _, scheduler in ipairs(call('ZRANGE', base .. 'repeat', 0, -1)) do
  call('DEL', base .. 'repeat:' .. scheduler)
end
for _, part in ipairs({'repeat', 'events', 'delay', 'stalled-check', 'stalled', 'id', 'pc', 'marker', 'limiter', 'meta',
  'metrics:completed', 'metrics:completed:data', 'metrics:failed', 'metrics:failed:data'}) do
  call('DEL', base .. part)
end
call('DEL', settings_key(base))
call('SREM', onward_root .. 'queues', name_of(base))
return 'done'
