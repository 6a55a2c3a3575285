-- The workers, with the term of the one that leads.
select w.id, w.hostname, w.pool_size, w.version, w.queues, w.types, w.started_at, w.last_heartbeat,
       iif(l.until > :now, l.until, null), w.command
  from onward_worker w left join onward_leader l on l.leader_id = w.id order by w.started_at, w.id
