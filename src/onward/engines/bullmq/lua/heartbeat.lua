-- Notes that a worker is alive, and extends the locks of what it holds.
--
-- uses: queue
-- KEYS[1]   the workers (Onward's own)
-- KEYS[2]   what they have been told
-- ARGV[5]   the worker's id
-- ARGV[6]   its card (JSON, without times)
-- ARGV[7…]  for each job: the base of its queue, id, token, lease in milliseconds
-- Answers what the worker has been told, '' for nothing, and the positions, from 1, of the lost ones, negative where the job itself
-- is gone.

local known = call('HGET', KEYS[1], ARGV[5])
local started = known and string.match(known, '^(%d+) ') or int_string(micros)
call('HSET', KEYS[1], ARGV[5], started .. ' ' .. int_string(micros) .. ' ' .. ARGV[6])
local lost = {}
local n = 0
for at = 7, #ARGV, 4 do
  n = n + 1
  local base, id = ARGV[at], ARGV[at + 1]
  local lock = base .. id .. ':lock'
  if call('GET', lock) == ARGV[at + 2] then
    call('PEXPIRE', lock, int_string(ARGV[at + 3] * ttl_factor))
    call('SREM', base .. 'stalled', id)
  else
    lost[#lost + 1] = call('EXISTS', base .. id) == 1 and n or -n
  end
end
return {call('HGET', KEYS[2], ARGV[5]) or '', lost}
