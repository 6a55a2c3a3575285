-- Hold a key.
insert into onward_hold (digest, until, queue, id) values (:digest, :until, :queue, :id)
on conflict (digest) do update set until = excluded.until, queue = excluded.queue, id = excluded.id
