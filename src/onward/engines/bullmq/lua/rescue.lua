-- Gives back the jobs of one queue whose lock has gone, as its leader.
--
-- BullMQ looks in two passes, each as long as the longest lock, because jobs once became active before they were locked.
-- They are locked in the same step now, so one look is enough, and a dead worker's jobs come back sooner.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  how many at most
-- ARGV[8]  how often a job may be lost before it is failed
-- Answers {how many, how many of them are to be failed}, or nothing: the term is another's.

if not leads(ARGV[5], ARGV[6]) then
  return false
end
local base = base_of(KEYS[1])
local most = tonumber(ARGV[7])
local rescued, buried = 0, 0
for _, id in ipairs(call('LRANGE', base .. 'active', 0, -1)) do
  if rescued == most then
    break
  end
  local key = base .. id
  if call('EXISTS', key .. ':lock') == 0 and call('LREM', base .. 'active', 1, id) == 1 then
    call('SREM', base .. 'stalled', id)
    if call('EXISTS', key) == 1 then
      rescued = rescued + 1
      local times = call('HINCRBY', key, 'stc', 1)
      local scheduler = call('HGET', key, 'rjk')
      local is_repeated = scheduler and call('ZSCORE', base .. 'repeat', scheduler)
      if times >= tonumber(ARGV[8]) and not is_repeated then
        call('HSET', key, 'defa', 'job stalled more than allowable limit')
        buried = buried + 1
      end
      call('RPUSH', line_of(base), id)
      mark_unless_shut(base)
      tell(base, 'waiting', 'jobId', id, 'prev', 'active')
      tell(base, 'stalled', 'jobId', id)
    end
  end
end
if rescued > 0 then
  trim(base)
end
return {rescued, buried}
