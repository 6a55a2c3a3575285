-- Gives a term up before its end; of any other term, nothing happens.
--
-- uses: queue
-- KEYS[1]  the leader (Onward's own)
-- ARGV[5]  the number of the term
-- ARGV[6]  the leader
-- Answers nothing.

if is_leader(ARGV[5], ARGV[6]) then
  call('HSET', KEYS[1], 'until', '0')
end
return false
