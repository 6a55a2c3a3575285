-- Stores progress and log lines of a job that is held.
--
-- uses: queue
-- KEYS[1]   the queue's meta
-- ARGV[5]   the job's id
-- ARGV[6]   the token
-- ARGV[7]   progress (JSON), '' for none
-- ARGV[8]   how many lines to keep
-- ARGV[9…]  lines
-- Answers 1, or 0 where the claim is lost.

local base = base_of(KEYS[1])
local key = base .. ARGV[5]
if call('GET', key .. ':lock') ~= ARGV[6] then
  return 0
end
if ARGV[7] ~= '' then
  call('HSET', key, 'progress', ARGV[7])
  emit(base, 'progress', 'jobId', ARGV[5], 'data', ARGV[7])
  trim_events(base)
end
if #ARGV > 8 then
  local limit = ARGV[8]
  local opts = call('HGET', key, 'opts')
  if opts and string.find(opts, '"kl":', 1, true) then
    limit = string.match(opts, '"kl":(%d+)') or limit
  end
  for n = 9, #ARGV do
    call('RPUSH', key .. ':logs', ARGV[n])
  end
  call('LTRIM', key .. ':logs', -limit, -1)
end
return 1
