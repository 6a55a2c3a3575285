-- Functions of schedulers: when the next job of one is due, and how it is made.

-- When a scheduler that says how often makes its next job, and how far that is from the beat; last: when its last job
-- was due, if there was one.
local function next_run(last, every, offset, starts)
  local due
  if last then
    due = last + every
    if due < now then
      -- Times that passed while nobody worked are left out; the beat is kept.
      due = math.floor(now / every) * every + (offset or 0)
      if due <= now then
        due = due + every
      end
    end
  elseif starts then
    due = math.max(starts, now)
  elseif offset and offset > 0 then
    due = math.floor(now / every) * every + offset
    if due <= now then
      due = due + every
    end
  else
    due = now
  end
  if not offset or offset == 0 then
    offset = due % every
  end
  return math.floor(due), math.floor(offset)
end

-- Makes the job that a scheduler has at a time, and answers for how long it is put off.
local function add_scheduled(base, scheduler, id, due, name, data, opts, timestamp)
  local key = base .. id
  local delay, priority = math.max(0, due - now), tonumber(opts.priority) or 0
  opts.delay = delay
  opts.jobId = id
  call('INCR', base .. 'id')
  call('HSET', key, 'name', name, 'data', data, 'opts', cjson.encode(opts), 'timestamp', int_string(timestamp), 'delay',
    int_string(delay), 'priority', priority, 'rjk', scheduler)
  if opts.de and opts.de.id then
    call('HSET', key, 'deid', opts.de.id)
  end
  emit(base, 'added', 'jobId', id, 'name', name)
  add_to_queue(base, id, priority, opts.lifo, delay, now)
  trim_events(base)
  return delay
end
