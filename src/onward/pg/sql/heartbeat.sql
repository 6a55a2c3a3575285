-- Register a worker, or say that it is alive; answers what it has been told.
-- $1 now, $2 id, $3 hostname, $4 pool size, $5 version, $6 queues, $7 types
insert into onward.worker as w (id, hostname, pool_size, version, queues, types, started_at, last_heartbeat)
values ($2::text, $3::text, $4::integer, $5::text, $6::text[], $7::text[],
        coalesce($1::timestamptz, clock_timestamp()), coalesce($1::timestamptz, clock_timestamp()))
on conflict (id) do update
   set hostname = excluded.hostname, pool_size = excluded.pool_size, version = excluded.version,
       queues = excluded.queues, types = excluded.types, last_heartbeat = excluded.last_heartbeat
returning command
