-- Makes due jobs of one queue ready, as its leader.
--
-- uses: queue
-- KEYS[1]  the queue's meta
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  how many at most
-- Answers {how many, milliseconds since 1970 of the next one or -1}, or nothing: the term is another's.

if not is_leader(ARGV[5], ARGV[6]) then
  return false
end
local base = base_of(KEYS[1])
local promoted = promote_due(base, tonumber(ARGV[7]))
add_delay_marker(base)
return {promoted, next_due(base) or -1}
