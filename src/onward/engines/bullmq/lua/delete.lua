-- Removes jobs of one queue that nobody holds, each with its children, unless one of those is held. The next job of a
-- scheduler stays: it goes with the scheduler.
--
-- uses: queue finish
-- KEYS[1]   the queue's meta
-- ARGV[5…]  ids
-- Answers for each the place where it was, or '' where it stays.

local base = base_of(KEYS[1])
local answers = {}
for n = 5, #ARGV do
  local id = ARGV[n]
  if call('EXISTS', base .. id) == 0 or call('LPOS', base .. 'active', id) or is_locked(base .. id)
    or is_next_of_scheduler(base, id) then
    answers[#answers + 1] = ''
  else
    answers[#answers + 1] = remove_job(base, id, 'all') or 'unknown'
  end
end
trim_events(base)
return answers
