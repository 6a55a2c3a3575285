-- Makes a token invalid from now on, and ends its sessions (S2).
--
-- uses: queue
-- KEYS[1]  the tokens (Onward's own)
-- KEYS[2]  when they were revoked
-- KEYS[3]  the sessions
-- KEYS[4]  when they were seen
-- KEYS[5]  the sessions of this token
-- ARGV[5]  the token's id
-- Answers {1 if it was not revoked before, the time}.

local is_new = 0
if call('HEXISTS', KEYS[1], ARGV[5]) == 1 then
  is_new = call('HSETNX', KEYS[2], ARGV[5], int_string(micros))
end
for _, digest in ipairs(call('SMEMBERS', KEYS[5])) do
  call('HDEL', KEYS[3], digest)
  call('HDEL', KEYS[4], digest)
end
call('DEL', KEYS[5])
return {is_new, int_string(micros)}
