-- Say how long a silent worker keeps the jobs of a queue; null: as the worker asks.
-- $1 queue, $2 lease
insert into onward.queue (name, lease) values ($1::text, $2::interval)
on conflict (name) do update set lease = excluded.lease
