-- Gives back the jobs of one queue whose lock has gone, as its leader.
--
-- In two looks, as BullMQ does it and on the same marks, which whoever extends a lock takes away: what is active is
-- marked, and what was marked by the look before, here or in Node, and has no lock is given back. So a job that became
-- active a moment ago, by a release that locks in a second step, is not taken from its worker.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  how many at most
-- ARGV[8]  how often a job may be lost before it is failed
-- Answers {how many, how many of them are to be failed, how many have no lock and were marked only now}, or nothing: the
-- term is another's.

if not is_leader(ARGV[5], ARGV[6]) then
  return false
end
local base = base_of(KEYS[1])
local active, stalled = base .. 'active', base .. 'stalled'
local limit = tonumber(ARGV[7])
local rescued, buried, newly_marked = 0, 0, 0
local marked = {}
for _, id in ipairs(call('SMEMBERS', stalled)) do
  marked[id] = true
  local key = base .. id
  if rescued < limit and call('EXISTS', key .. ':lock') == 0 then
    if call('LREM', active, 1, id) == 1 and call('TYPE', key).ok == 'hash' then
      rescued = rescued + 1
      local times = (tonumber(call('HGET', key, 'stc')) or 0) + 1
      call('HSET', key, 'stc', int_string(times))
      local scheduler = call('HGET', key, 'rjk')
      local is_repeated = scheduler and call('ZSCORE', base .. 'repeat', scheduler)
      if times >= tonumber(ARGV[8]) and not is_repeated then
        call('HSET', key, 'defa', 'job stalled more than allowable limit')
        buried = buried + 1
      end
      call('RPUSH', wait_list_of(base), id)
      add_base_marker_if_needed(base)
      emit(base, 'waiting', 'jobId', id, 'prev', 'active')
      emit(base, 'stalled', 'jobId', id)
    end
  end
end
if rescued > 0 then
  trim_events(base)
end
if rescued < limit then
  call('DEL', stalled)
  local active_ids = call('LRANGE', active, 0, -1)
  for first = 1, #active_ids, 1000 do
    call('SADD', stalled, unpack(active_ids, first, math.min(first + 999, #active_ids)))
  end
  for _, id in ipairs(active_ids) do
    if not marked[id] and call('EXISTS', base .. id .. ':lock') == 0 then
      newly_marked = newly_marked + 1
    end
  end
end
return {rescued, buried, newly_marked}
