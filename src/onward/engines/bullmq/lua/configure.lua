-- Changes what a queue is told to do; makes the queue if there is none.
--
-- uses: queue
-- KEYS[1]   the queue's meta
-- ARGV[5]   '1' to pause, '0' to go on, '' for neither
-- ARGV[6]   how many fields of meta follow, then those: name, value, '' to take it away
-- ARGV[…]   fields of Onward's own, alike
-- Answers nothing.

local base = base_of(KEYS[1])
trim_events(base)
register(base)
local count = tonumber(ARGV[6])
local own = settings_key(base)
local was_paused = call('HEXISTS', KEYS[1], 'paused') == 1
-- What is left of an earlier pause that Node has ended is not the reason of this one.
if ARGV[5] == '0' or ARGV[5] == '1' and not was_paused then
  call('HDEL', own, 'pause_reason', 'paused_by', 'paused_at')
end
if ARGV[5] == '1' then
  call('HSETNX', own, 'paused_at', int_string(micros))
end
for at = 7, #ARGV, 2 do
  local key = at < 7 + count * 2 and KEYS[1] or own
  if ARGV[at + 1] == '' then
    call('HDEL', key, ARGV[at])
  else
    call('HSET', key, ARGV[at], ARGV[at + 1])
  end
end
if ARGV[5] == '1' and not was_paused then
  call('HSET', KEYS[1], 'paused', 1)
  call('DEL', base .. 'marker')
  -- BullMQ 5 looks for them there.
  local wait_list = wait_list_of(base)
  if wait_list ~= base .. 'wait' and call('EXISTS', base .. 'wait') == 1 then
    if call('EXISTS', wait_list) == 0 then
      call('RENAME', base .. 'wait', wait_list)
    end
  end
  emit(base, 'paused')
elseif ARGV[5] == '0' and was_paused then
  call('HDEL', KEYS[1], 'paused')
  while call('LLEN', base .. 'paused') > 0 do
    if call('EXISTS', base .. 'wait') == 0 then
      call('RENAME', base .. 'paused', base .. 'wait')
    else
      local some = call('LRANGE', base .. 'paused', 0, 999)
      call('RPUSH', base .. 'wait', unpack(some))
      call('LTRIM', base .. 'paused', #some, -1)
    end
  end
  if call('LLEN', base .. 'wait') + call('ZCARD', base .. 'prioritized') > 0 then
    add_base_marker_if_needed(base)
  else
    add_delay_marker(base)
  end
  emit(base, 'resumed')
end
return false
