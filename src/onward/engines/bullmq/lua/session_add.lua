-- Adds a session of a token that is not revoked (S2).
--
-- uses: queue
-- KEYS[1]  the tokens (Onward's own)
-- KEYS[2]  when they were revoked
-- KEYS[3]  the sessions
-- KEYS[4]  when they were seen
-- KEYS[5]  the sessions of this token
-- ARGV[5]  the token's id
-- ARGV[6]  the session's digest
-- ARGV[7]  the session as JSON
-- ARGV[8]  when it was seen, in microseconds
-- Answers whether it was added.

if call('HEXISTS', KEYS[1], ARGV[5]) == 0 or call('HEXISTS', KEYS[2], ARGV[5]) == 1 then
  return 0
end
if call('HSETNX', KEYS[3], ARGV[6], ARGV[5] .. ARGV[7]) == 0 then
  return 0
end
call('HSET', KEYS[4], ARGV[6], ARGV[8])
call('SADD', KEYS[5], ARGV[6])
return 1
