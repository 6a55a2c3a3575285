-- Tells a worker what to do.
--
-- uses: queue
-- KEYS[1]  the workers (Onward's own)
-- KEYS[2]  what they have been told
-- ARGV[5]  the worker's id
-- ARGV[6]  'quiet' or 'stop'; '': to claim jobs
-- Answers whether it is registered.

if ARGV[6] == '' then
  call('HDEL', KEYS[2], ARGV[5])
elseif call('HEXISTS', KEYS[1], ARGV[5]) == 1 then
  call('HSET', KEYS[2], ARGV[5], ARGV[6])
end
return call('HEXISTS', KEYS[1], ARGV[5])
