-- Gives failed jobs of one queue a new life, with all their attempts, unless a living job has their deduplication.
--
-- uses: queue finish
-- KEYS[1]   the queue's meta
-- ARGV[5…]  ids
-- Answers for each 1 or 0.

local base = base_of(KEYS[1])
local answers = {}
for n = 5, #ARGV do
  local id = ARGV[n]
  local key = base .. id
  local fields = call('HMGET', key, 'name', 'priority', 'deid', 'parentKey', 'opts')
  local dedup = fields[3]
  local existing = dedup and call('GET', base .. 'de:' .. dedup)
  local is_free = not existing or existing == id or call('EXISTS', base .. existing) == 0
  if fields[1] and is_free and call('ZREM', base .. 'failed', id) == 1 then
    call('HDEL', key, 'finishedOn', 'processedOn', 'failedReason', 'atm', 'ats', 'stc', 'defa')
    if dedup then
      call('SET', base .. 'de:' .. dedup, id)
    end
    make_ready(base, id, tonumber(fields[2]) or 0, is_lifo(fields[5]) and 'RPUSH' or 'LPUSH')
    add_base_marker_if_needed(base)
    local parent = fields[4]
    if parent and call('EXISTS', parent) == 1 then
      local was_waited_for = call('ZREM', parent .. ':unsuccessful', key) + call('HDEL', parent .. ':failed', key)
      if was_waited_for > 0 then
        call('SADD', parent .. ':dependencies', key)
      end
    end
    emit(base, 'waiting', 'jobId', id, 'prev', 'failed')
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
trim_events(base)
return answers
