-- Says where the events of some queues begin and end, all at the same moment.
--
-- uses: queue
-- KEYS[n]  the meta of each queue
-- Answers {the server's own time in milliseconds, then for each queue the first and the last id, '' for none}.

local time = call('TIME')
local answer = {int_string(time[1] * 1000 + math.floor(time[2] / 1000))}
for _, meta in ipairs(KEYS) do
  local events = base_of(meta) .. 'events'
  local first, last = call('XRANGE', events, '-', '+', 'COUNT', 1), call('XREVRANGE', events, '+', '-', 'COUNT', 1)
  answer[#answer + 1] = first[1] and first[1][1] or ''
  answer[#answer + 1] = last[1] and last[1][1] or ''
end
return answer
