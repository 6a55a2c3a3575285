-- Removes finished jobs of one queue that need not be kept, as its leader; and the queue from the registry once it has
-- no jobs.
--
-- uses: queue finish
-- KEYS[1]  the queue's meta
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  how many at most
-- ARGV[8]  milliseconds for which completed jobs are kept where the queue is nobody's but ours and does not say; '' for ever
-- ARGV[9]  '1': patterns find the queue by its meta key too, so that it need not be registered
-- Answers how many; nothing: the term is another's.

if not is_leader(ARGV[5], ARGV[6]) then
  return false
end
local base = base_of(KEYS[1])
local left = tonumber(ARGV[7])
local pruned = 0
local values = call('HMGET', settings_key(base), 'retention', 'keep_completed', 'count_completed', 'keep_failed',
  'count_failed')
local is_default = not values[1]
if is_default and not call('HGET', KEYS[1], 'version') then
  values[2] = ARGV[8]
end
-- By default only what Onward has added is removed: Node's clients, and BullMQ's for Python, keep finished jobs as each of
-- them says. Only Node's leave their version.
local function is_ours(id)
  local opts = call('HGET', base .. id, 'opts')
  return not opts or string.find(opts, '"onward":', 1, true)
end
local function drop(set, ids)
  for _, id in ipairs(ids) do
    if not is_default or is_ours(id) then
      remove_finished_job(base, id)
      call('ZREM', base .. set, id)
      pruned = pruned + 1
    end
  end
  left = left - #ids
end
-- Jobs of others stay, and those of ours behind them would never have their turn. So the time up to which all has been looked
-- at is kept, where one call does not reach the end.
local marks = onward_root .. 'pruned_until'
local function keep(set, age, count)
  if age and age ~= '' and left > 0 then
    local since = is_default and call('HGET', marks, name_of(base)) or '-inf'
    local old = call('ZRANGEBYSCORE', base .. set, since, int_string(now - age), 'LIMIT', 0, left)
    if is_default and #old == left then
      call('HSET', marks, name_of(base), call('ZSCORE', base .. set, old[#old]))
    end
    drop(set, old)
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
unregister_if_empty(base, ARGV[9] == '1')
return pruned
