-- Makes a scheduler, or changes one, with its next job in place of the one that waits.
--
-- uses: queue finish schedulers
-- KEYS[1]  the queue's meta
-- ARGV[5]  the scheduler
-- ARGV[6]  when the next job is due, in milliseconds since 1970; '' where the scheduler says how often
-- ARGV[7]  what it says (JSON: name, tz, limit, pattern, startDate, endDate, every, offset)
-- ARGV[8]  the data of its jobs (JSON)
-- ARGV[9]  the options of its jobs (JSON)
-- ARGV[10] the options of the next job (JSON)
-- Answers {the next job's id, for how many milliseconds it is put off}, or {'', why not}.

local base = base_of(KEYS[1])
local scheduler, due = ARGV[5], tonumber(ARGV[6])
local schedulers = base .. 'repeat'
local settings = schedulers .. ':' .. scheduler
local values, opts = cjson.decode(ARGV[7]), cjson.decode(ARGV[10])
local last = tonumber(call('ZSCORE', schedulers, scheduler))
local known = call('HMGET', settings, 'every', 'offset', 'ic')
local every = values.every
local has_same_interval = every and last and tonumber(known[1]) == every
local offset = values.offset or 0
if every then
  due, offset = next_run(has_same_interval and last or nil, every, offset, values.startDate)
end

local replaced = false
if last then
  local id = 'repeat:' .. scheduler .. ':' .. int_string(last)
  if call('EXISTS', base .. id) == 1 then
    replaced = call('ZREM', base .. 'delayed', id) + call('ZREM', base .. 'prioritized', id)
      + call('LREM', base .. 'wait', 1, id) + call('LREM', base .. 'paused', 1, id) > 0
    if replaced then
      purge_job(base, id)
    end
  end
end
if not replaced then
  values.offset = offset
elseif has_same_interval then
  due = last
end

-- A job of that time that has run, or runs, is not made again.
local function id_at(time)
  return 'repeat:' .. scheduler .. ':' .. int_string(time)
end
local tries = 0
while call('EXISTS', base .. id_at(due)) == 1 and not (replaced and not every) do
  if not every then
    return {'', 'there is a job of that time already'}
  elseif tries == 32 then
    return {'', 'there are jobs of its next times already'}
  end
  tries = tries + 1
  due = due + every
end

local fields = {'name', values.name}
local function keep(field, value)
  if value and value ~= cjson.null then
    fields[#fields + 1] = field
    fields[#fields + 1] = type(value) == 'number' and int_string(value) or value
  end
end
for _, field in ipairs({'tz', 'limit', 'pattern', 'startDate', 'endDate', 'every'}) do
  keep(field, values[field])
end
keep('offset', values.offset or known[2])
keep('opts', ARGV[9] ~= '{}' and ARGV[9])
keep('data', ARGV[8] ~= '{}' and ARGV[8])
keep('ic', known[3] or '1')
call('ZADD', schedulers, int_string(due), scheduler)
call('DEL', settings)
call('HSET', settings, unpack(fields))
local delay = add_scheduled(base, scheduler, id_at(due), due, values.name, ARGV[8], opts, now)
register(base)
return {id_at(due), delay}
