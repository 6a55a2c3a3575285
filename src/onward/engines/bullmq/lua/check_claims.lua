-- Looks which claims still hold their job.
--
-- uses: queue
-- KEYS[1]   any key of ours
-- ARGV[5…]  for each: the base of its queue, id, token
-- Answers the positions, from 1, of the lost ones.

local lost = {}
local n = 0
for at = 5, #ARGV, 3 do
  n = n + 1
  if call('GET', ARGV[at] .. ARGV[at + 1] .. ':lock') ~= ARGV[at + 2] then
    lost[#lost + 1] = n
  end
end
return lost
