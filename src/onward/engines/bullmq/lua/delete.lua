-- Removes jobs of one queue that nobody holds.
--
-- uses: queue ending
-- KEYS[1]   the queue's meta
-- ARGV[5…]  ids
-- Answers for each the place where it was, or '' where it stays.

local base = base_of(KEYS[1])
local answers = {}
for n = 5, #ARGV do
  local id = ARGV[n]
  local is_held = call('EXISTS', base .. id .. ':lock') == 1 or call('LPOS', base .. 'active', id)
  if is_held or call('EXISTS', base .. id) == 0 then
    answers[#answers + 1] = ''
  else
    answers[#answers + 1] = remove_job(base, id) or 'unknown'
  end
end
trim(base)
return answers
