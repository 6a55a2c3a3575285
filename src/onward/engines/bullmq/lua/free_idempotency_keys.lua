-- Frees idempotency keys whose job is gone, some at a time, as the leader.
--
-- uses: queue
-- KEYS[1]  the keys (Onward's own)
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- ARGV[7]  where the last look ended, '0' to begin
-- ARGV[8]  about how many to look at
-- Answers where this look ended, '0' for the end; nothing: the term is another's.

if not is_leader(ARGV[5], ARGV[6]) then
  return false
end
local page = call('HSCAN', KEYS[1], ARGV[7], 'COUNT', ARGV[8])
for at = 1, #page[2], 2 do
  local queue, id = string.match(page[2][at + 1], '^([^\n]*)\n(.*)$')
  if not queue or call('EXISTS', root .. queue .. ':' .. id) == 0 then
    call('HDEL', KEYS[1], page[2][at])
  end
end
return page[1]
