-- Reads jobs of one queue, each with the place where it is.
--
-- uses: queue
-- KEYS[1]   the queue's meta
-- ARGV[5…]  ids
-- Answers for each {place, the score there or '', its fields (HGETALL)}, or nothing.

local base = base_of(KEYS[1])
local answers = {}
for n = 5, #ARGV do
  local id = ARGV[n]
  local fields = redis.pcall('HGETALL', base .. id)
  local answer = false
  if #fields > 0 then
    local where, score = 'wait', ''
    for _, location in ipairs({'completed', 'failed', 'delayed', 'prioritized', 'waiting-children'}) do
      local found = call('ZSCORE', base .. location, id)
      if found then
        where, score = location, found
        break
      end
    end
    if where == 'wait' and (call('EXISTS', base .. id .. ':lock') == 1 or call('LPOS', base .. 'active', id)) then
      where = 'active'
    end
    answer = {where, score, fields}
  end
  answers[#answers + 1] = answer
end
return answers
