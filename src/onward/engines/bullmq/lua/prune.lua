-- Removes finished jobs of one queue that need not be kept, as its leader.
--
-- uses: queue finish
-- KEYS[1]  the queue's meta
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  how many at most
-- ARGV[8]  milliseconds for which completed jobs are kept where the queue is nobody's but ours and does not say; '' for ever
-- Answers how many; nothing: the term is another's.

if not is_leader(ARGV[5], ARGV[6]) then
  return false
end
local base = base_of(KEYS[1])
local left = tonumber(ARGV[7])
local pruned = 0
local values = call('HMGET', settings_key(base), 'retention', 'keep_completed', 'count_completed', 'keep_failed',
  'count_failed')
if not values[1] then
  -- Whoever made it in Node keeps finished jobs as each of them says.
  if call('HGET', KEYS[1], 'version') then
    return 0
  end
  values[2] = ARGV[8]
end
local function drop(set, ids)
  for _, id in ipairs(ids) do
    remove_finished_job(base, id)
    call('ZREM', base .. set, id)
  end
  pruned = pruned + #ids
  left = left - #ids
end
local function keep(set, age, count)
  if age and age ~= '' and left > 0 then
    drop(set, call('ZRANGEBYSCORE', base .. set, '-inf', int_string(now - age), 'LIMIT', 0, left))
  end
  if count and count ~= '' and left > 0 then
    local over = call('ZCARD', base .. set) - tonumber(count)
    if over > 0 then
      drop(set, call('ZRANGE', base .. set, 0, math.min(over, left) - 1))
    end
  end
end
keep('completed', values[2], values[3])
keep('failed', values[4], values[5])
return pruned
