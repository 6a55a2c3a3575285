-- Removes jobs of one queue from one place that are old enough, some at a time. The next jobs of schedulers stay, and
-- those that are held.
--
-- uses: queue ending
-- KEYS[1]  the queue's meta
-- ARGV[5]  the place
-- ARGV[6]  in milliseconds since 1970: what came, was taken or ended later stays
-- ARGV[7]  how many to look at
-- ARGV[8]  how many were looked at before, and stay
-- Answers {how many were looked at, then the ids of those that went}.

local base = base_of(KEYS[1])
local place, latest, most, passed = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local key = base .. place
local TIMES = {
  delayed = {'processedOn', 'timestamp'}, prioritized = {'timestamp'}, ['waiting-children'] = {'timestamp'},
  completed = {'finishedOn'}, failed = {'finishedOn'}
}
local times = TIMES[place]
local ids
if place == 'completed' or place == 'failed' then
  ids = call('ZRANGEBYSCORE', key, 0, whole(latest), 'LIMIT', passed, most)
elseif times then
  ids = call('ZRANGE', key, passed, passed + most - 1)
else
  ids = call('LRANGE', key, -passed - most, -passed - 1)
  times = {'finishedOn', 'processedOn', 'timestamp'}
end

local function is_old(id)
  for _, time in ipairs(call('HMGET', base .. id, unpack(times))) do
    if time then
      return tonumber(time) <= latest
    end
  end
  return true
end

local answer = {#ids}
for _, id in ipairs(ids) do
  local is_free = place ~= 'active' or call('EXISTS', base .. id .. ':lock') == 0
  if is_free and is_old(id) and not is_of_schedule(base, id) then
    if TIMES[place] then
      call('ZREM', key, id)
    else
      call('LREM', key, -1, id)
    end
    empty_of(base, id)
    answer[#answer + 1] = id
  end
end
if #answer > 1 or passed == 0 then
  tell(base, 'cleaned', 'count', #answer - 1)
end
return answer
