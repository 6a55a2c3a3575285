-- Ends a scheduler, and removes the job that it has put off; one that is ready stays.
--
-- uses: queue finish
-- KEYS[1]  the queue's meta
-- ARGV[5]  the scheduler
-- Answers 1, or 0 where there is none.

local base = base_of(KEYS[1])
local scheduler = ARGV[5]
local due = call('ZSCORE', base .. 'repeat', scheduler)
if not due then
  return 0
end
local id = 'repeat:' .. scheduler .. ':' .. due
if call('ZREM', base .. 'delayed', id) == 1 then
  remove_keys(base .. id)
  emit(base, 'removed', 'jobId', id, 'prev', 'delayed')
end
call('ZREM', base .. 'repeat', scheduler)
call('DEL', base .. 'repeat:' .. scheduler)
return 1
