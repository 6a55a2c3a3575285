-- The workers, with the term of the one that leads.
-- $1 now
select w.id, w.hostname, w.pool_size, w.version, w.queues, w.types, w.started_at, w.last_heartbeat,
       case when l.until > coalesce($1::timestamptz, clock_timestamp()) then l.until end, w.command
  from onward.worker w left join onward.leader l on l.leader_id = w.id order by w.started_at, w.id
