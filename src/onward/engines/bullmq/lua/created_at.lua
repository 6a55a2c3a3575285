-- Reads when jobs of one queue were added.
--
-- uses: queue
-- KEYS[1]   the queue's meta
-- ARGV[5…]  ids
-- Answers for each milliseconds since 1970, or '' where there is no such job.

local base = base_of(KEYS[1])
local answers = {}
for n = 5, #ARGV do
  answers[#answers + 1] = call('HGET', base .. ARGV[n], 'timestamp') or ''
end
return answers
