-- Reads audit records, the newest first.
--
-- uses: queue
-- KEYS[1]  the index: record ids by number (Onward's own)
-- KEYS[2]  the records
-- KEYS[3]  the counts
-- ARGV[5]  the highest number, as ZREVRANGEBYSCORE takes it
-- ARGV[6]  at most so many
-- Answers number, record and count ('' for none) of each, in turns.

local found = call('ZREVRANGEBYSCORE', KEYS[1], ARGV[5], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[6])
local answers = {}
for at = 1, #found, 2 do
  local record = call('HGET', KEYS[2], found[at])
  if record then
    answers[#answers + 1] = found[at + 1]
    answers[#answers + 1] = record
    answers[#answers + 1] = call('HGET', KEYS[3], found[at]) or ''
  end
end
return answers
