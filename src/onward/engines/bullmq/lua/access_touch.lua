-- Notes that a token or a session was used, unless that was noted within the last minute.
--
-- uses: queue
-- KEYS[1]  the tokens or sessions (Onward's own)
-- KEYS[2]  when they were used
-- ARGV[5]  its id or digest

local used_at = tonumber(call('HGET', KEYS[2], ARGV[5]) or 0)
if call('HEXISTS', KEYS[1], ARGV[5]) == 1 and used_at <= micros - 60000000 then
  call('HSET', KEYS[2], ARGV[5], int_string(micros))
end
return 1
