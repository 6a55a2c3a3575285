-- Reads what a queue is told to do, and how deep it is.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- Answers {is it there, its meta (HGETALL), Onward's own settings (HGETALL), waiting, paused, prioritized, active,
-- delayed, waiting for children, completed, failed, milliseconds since 1970 at which the longest ready job came or -1}.

local base = base_of(KEYS[1])
local oldest = -1
local function consider(id)
  if id then
    local fields = call('HMGET', base .. id, 'timestamp', 'opts')
    if fields[1] then
      local delay = tonumber(string.match(fields[2] or '', '"delay":(%d+)[,}]')) or 0
      local at = tonumber(fields[1]) + (string.find(fields[2] or '', '^{"delay"') and delay or 0)
      if oldest < 0 or at < oldest then
        oldest = at
      end
    end
  end
end
consider(call('LINDEX', base .. 'wait', -1))
consider(call('ZRANGE', base .. 'prioritized', 0, 0)[1])
return {
  call('EXISTS', KEYS[1]), call('HGETALL', KEYS[1]), call('HGETALL', settings_key(base)), call('LLEN', base .. 'wait'),
  call('LLEN', base .. 'paused'), call('ZCARD', base .. 'prioritized'), call('LLEN', base .. 'active'),
  call('ZCARD', base .. 'delayed'), call('ZCARD', base .. 'waiting-children'), call('ZCARD', base .. 'completed'),
  call('ZCARD', base .. 'failed'), int_string(oldest)
}
