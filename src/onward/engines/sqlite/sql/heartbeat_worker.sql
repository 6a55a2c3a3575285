-- Register a worker, or say that it is alive; answers what it has been told.
insert into onward_worker (id, hostname, pool_size, version, queues, types, started_at, last_heartbeat)
values (:id, :hostname, :pool_size, :version, :queues, :types, :now, :now)
on conflict (id) do update
   set last_heartbeat = :now, pool_size = excluded.pool_size, queues = excluded.queues, types = excluded.types
returning command
