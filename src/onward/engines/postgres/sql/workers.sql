-- The workers, with the term of the one that leads.
select w.id, w.hostname, w.pool_size, w.version, w.queues, w.types, onward.to_micros(w.started_at), onward.to_micros(w.last_heartbeat),
       case when l.until > coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) then onward.to_micros(l.until) end,
       w.command
  from onward.worker w left join onward.leader l on l.leader_id = w.id order by w.started_at, w.id
