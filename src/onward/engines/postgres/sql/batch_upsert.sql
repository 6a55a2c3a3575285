-- Make a batch, or change one that has not finished; no row is answered where it has.
-- $1 now, $2 name, $3 queue, $4 on_success, $5 on_failure, $6 on_finished
insert into onward.batch as b (name, queue, on_success, on_failure, on_finished, created_at)
values ($2::text, $3::text, $4::text, $5::text, $6::text, coalesce(onward.to_timestamp($1::bigint), clock_timestamp()))
on conflict (name) do update
   set queue = coalesce(excluded.queue, b.queue), on_success = coalesce(excluded.on_success, b.on_success),
       on_failure = coalesce(excluded.on_failure, b.on_failure), on_finished = coalesce(excluded.on_finished, b.on_finished)
 where b.finished_at is null
returning name
