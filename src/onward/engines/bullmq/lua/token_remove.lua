-- Removes a token that ended long ago, with its sessions.
--
-- uses: queue
-- KEYS[1]  the tokens (Onward's own)
-- KEYS[2]  when they were used
-- KEYS[3]  when they were revoked
-- KEYS[4]  the sessions
-- KEYS[5]  when they were seen
-- KEYS[6]  the sessions of this token
-- ARGV[5]  the token's id
-- Answers how many tokens and sessions were removed.

local removed = call('HDEL', KEYS[1], ARGV[5])
call('HDEL', KEYS[2], ARGV[5])
call('HDEL', KEYS[3], ARGV[5])
for _, digest in ipairs(call('SMEMBERS', KEYS[6])) do
  removed = removed + call('HDEL', KEYS[4], digest)
  call('HDEL', KEYS[5], digest)
end
call('DEL', KEYS[6])
return removed
