-- Make a batch, or change one that has not finished; no row is answered where it has.
insert into onward_batch (name, queue, sealed, stopped, on_success, on_failure, on_finished, created_at)
values (:name, :queue, 0, 0, :on_success, :on_failure, :on_finished, :now)
on conflict (name) do update
   set queue = coalesce(excluded.queue, queue), on_success = coalesce(excluded.on_success, on_success),
       on_failure = coalesce(excluded.on_failure, on_failure), on_finished = coalesce(excluded.on_finished, on_finished)
 where finished_at is null
returning name
