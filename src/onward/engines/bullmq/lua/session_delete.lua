-- Ends a session.
--
-- uses: queue
-- KEYS[1]  the sessions (Onward's own)
-- KEYS[2]  when they were seen
-- ARGV[5]  the session's digest
-- Answers whether there was one.

local session = call('HGET', KEYS[1], ARGV[5])
if not session then
  return 0
end
call('HDEL', KEYS[1], ARGV[5])
call('HDEL', KEYS[2], ARGV[5])
call('SREM', onward_root .. 'sessions:' .. string.sub(session, 1, 36), ARGV[5])
return 1
