-- Writes audit records, each once. The index comes first: if it cannot be written, neither is the record (S5).
--
-- uses: queue
-- KEYS[1]  the index: record ids by number (Onward's own)
-- KEYS[2]  the records
-- KEYS[3]  the last number
-- ARGV[5…] id and record as JSON, in turns
-- Answers for each whether it is new.

local answers = {}
for at = 5, #ARGV, 2 do
  if call('HEXISTS', KEYS[2], ARGV[at]) == 1 then
    answers[#answers + 1] = 0
  else
    call('ZADD', KEYS[1], call('INCR', KEYS[3]), ARGV[at])
    call('HSET', KEYS[2], ARGV[at], int_string(micros) .. ':' .. ARGV[at + 1])
    answers[#answers + 1] = 1
  end
end
return answers
