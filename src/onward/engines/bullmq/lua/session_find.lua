-- Reads a session and its token.
--
-- uses: queue
-- KEYS[1]  the tokens (Onward's own)
-- KEYS[2]  when they were used
-- KEYS[3]  when they were revoked
-- KEYS[4]  the sessions
-- KEYS[5]  when they were seen
-- ARGV[5]  the session's digest
-- Answers {session, seen, token, used, revoked}, of which the last two may be '', or nothing.

local session = call('HGET', KEYS[4], ARGV[5])
if not session then
  return false
end
local id = string.sub(session, 1, 36)
local token = call('HGET', KEYS[1], id)
if not token then
  return false
end
return {string.sub(session, 37), call('HGET', KEYS[5], ARGV[5]) or '0', token, call('HGET', KEYS[2], id) or '',
  call('HGET', KEYS[3], id) or ''}
