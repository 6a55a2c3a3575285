-- Becomes leader, or stays it by the exact term (O6).
--
-- uses: queue
-- KEYS[1]  the leader (Onward's own)
-- ARGV[5]  the candidate
-- ARGV[6]  the lease in microseconds
-- ARGV[7]  the number of the term that is held, '' for none
-- Answers {number, until}, or nothing.

local values = call('HMGET', KEYS[1], 'number', 'leader', 'until')
local number = tonumber(values[1]) or 0
local is_vacant = not values[3] or tonumber(values[3]) <= micros
if ARGV[7] ~= '' then
  if is_vacant or values[1] ~= ARGV[7] or values[2] ~= ARGV[5] then
    return false
  end
elseif is_vacant then
  number = number + 1
else
  return false
end
local expires_at = int_string(micros + ARGV[6])
call('HSET', KEYS[1], 'number', int_string(number), 'leader', ARGV[5], 'until', expires_at)
return {number, expires_at}
