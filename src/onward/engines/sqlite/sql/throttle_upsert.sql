-- Throttle or debounce a dedupe key until a time.
insert into onward_throttle (digest, until, queue, id) values (:digest, :until, :queue, :id)
on conflict (digest) do update set until = excluded.until, queue = excluded.queue, id = excluded.id
