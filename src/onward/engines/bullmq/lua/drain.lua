-- Removes jobs of one queue that wait, some at a time. The next jobs of schedulers stay.
--
-- uses: queue finish
-- KEYS[1]   the queue's meta
-- ARGV[5]   how many at most
-- ARGV[6…]  places, in the order in which they are emptied
-- Answers how many; fewer than asked for: that was all.

local base = base_of(KEYS[1])
local left = tonumber(ARGV[5])
local removed = 0
for n = 6, #ARGV do
  local location = base .. ARGV[n]
  local is_list = call('TYPE', location).ok == 'list'
  local ids = is_list and call('LRANGE', location, 0, -1) or call('ZRANGE', location, 0, -1)
  for _, id in ipairs(ids) do
    if removed == left then
      return removed
    end
    if not is_next_of_scheduler(base, id) then
      if is_list then
        call('LREM', location, 1, id)
      else
        call('ZREM', location, id)
      end
      purge_job(base, id)
      removed = removed + 1
    end
  end
end
return removed
