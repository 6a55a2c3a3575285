-- Takes workers that have gone silent off the list, as the leader.
--
-- uses: queue
-- KEYS[1]  the workers (Onward's own)
-- KEYS[2]  what they have been told
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  microseconds of silence after which a worker is gone
-- Answers nothing.

if is_leader(ARGV[5], ARGV[6]) then
  local known = call('HGETALL', KEYS[1])
  for at = 1, #known, 2 do
    local last_heartbeat = tonumber(string.match(known[at + 1], '^%d+ (%d+) '))
    if last_heartbeat and last_heartbeat + ARGV[7] < micros then
      call('HDEL', KEYS[1], known[at])
      call('HDEL', KEYS[2], known[at])
    end
  end
end
return false
