-- Lets a job that is held wait for its children: the last of them makes it ready again.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the job's id
-- ARGV[6]  the token
-- Answers 'waiting', 'none' where no child is pending, 'failed' where one has failed, or 'lost' where the claim is lost.

local base = base_of(KEYS[1])
local id = ARGV[5]
local key = base .. id
if call('GET', key .. ':lock') ~= ARGV[6] then
  return 'lost'
end
if call('ZCARD', key .. ':unsuccessful') > 0 then
  return 'failed'
end
if call('SCARD', key .. ':dependencies') == 0 then
  return 'none'
end
call('DEL', key .. ':lock')
call('SREM', base .. 'stalled', id)
call('LREM', base .. 'active', -1, id)
call('ZADD', base .. 'waiting-children', int_string(now), id)
emit(base, 'waiting-children', 'jobId', id, 'prev', 'active')
return 'waiting'
