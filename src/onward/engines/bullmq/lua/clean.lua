-- Removes jobs of one queue from one place that are old enough, some at a time. The next jobs of schedulers stay, and
-- those that are held.
--
-- uses: queue finish
-- KEYS[1]  the queue's meta
-- ARGV[5]  the place
-- ARGV[6]  in milliseconds since 1970: what came, was taken or ended later stays
-- ARGV[7]  how many to look at
-- ARGV[8]  how many were looked at before, and stay
-- Answers {how many were looked at, then the ids of those that went}.

local base = base_of(KEYS[1])
local location, latest, limit, skipped = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local key = base .. location
local TIMES = {
  delayed = {'processedOn', 'timestamp'}, prioritized = {'timestamp'}, ['waiting-children'] = {'timestamp'},
  completed = {'finishedOn'}, failed = {'finishedOn'}
}
local times = TIMES[location]
local ids
if location == 'completed' or location == 'failed' then
  ids = call('ZRANGEBYSCORE', key, 0, int_string(latest), 'LIMIT', skipped, limit)
elseif times then
  ids = call('ZRANGE', key, skipped, skipped + limit - 1)
else
  ids = call('LRANGE', key, -skipped - limit, -skipped - 1)
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
  local is_free = location ~= 'active' or call('EXISTS', base .. id .. ':lock') == 0
  if is_free and is_old(id) and not is_next_of_scheduler(base, id) then
    if TIMES[location] then
      call('ZREM', key, id)
    else
      call('LREM', key, -1, id)
    end
    purge_job(base, id)
    answer[#answer + 1] = id
  end
end
if #answer > 1 or skipped == 0 then
  emit(base, 'cleaned', 'count', #answer - 1)
end
return answer
