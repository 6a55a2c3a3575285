-- Takes jobs of one queue back: they are removed, with those of their children that wait, and whoever holds one learns
-- of it. The next job of a scheduler stays: it goes with the scheduler.
--
-- uses: queue finish
-- KEYS[1]   the queue's meta
-- ARGV[5…]  ids
-- Answers for each the place where it was, or '' where it may not be taken back.

local base = base_of(KEYS[1])
local answers = {}
for n = 5, #ARGV do
  local id = ARGV[n]
  if call('ZSCORE', base .. 'completed', id) or call('ZSCORE', base .. 'failed', id)
    or call('EXISTS', base .. id) == 0 or is_next_of_scheduler(base, id) then
    answers[#answers + 1] = ''
  else
    local was = remove_job(base, id, 'waiting')
    call('DEL', base .. id .. ':lock')
    call('SREM', base .. 'stalled', id)
    answers[#answers + 1] = was or ''
  end
end
trim_events(base)
return answers
