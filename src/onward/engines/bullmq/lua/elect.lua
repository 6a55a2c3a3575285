-- Becomes leader, or stays it by the exact term (O6).
--
-- uses: queue
-- KEYS[1]  the leader (Onward's own)
-- ARGV[5]  the candidate
-- ARGV[6]  the lease in microseconds
-- ARGV[7]  the number of the term that is held, '' for none
-- Answers {number, until}, or nothing.

local said = call('HMGET', KEYS[1], 'number', 'leader', 'until')
local number = tonumber(said[1]) or 0
local is_vacant = not said[3] or tonumber(said[3]) <= micros
if ARGV[7] ~= '' then
  if is_vacant or said[1] ~= ARGV[7] or said[2] ~= ARGV[5] then
    return false
  end
elseif is_vacant then
  number = number + 1
else
  return false
end
local till = whole(micros + ARGV[6])
call('HSET', KEYS[1], 'number', whole(number), 'leader', ARGV[5], 'until', till)
return {number, till}
