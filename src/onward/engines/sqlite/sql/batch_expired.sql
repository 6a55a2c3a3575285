-- Batches that have finished long enough ago to be forgotten.
-- :before, :limit
-- Relies on: onward_batch_finished.
select name from onward_batch where finished_at is not null and finished_at <= :before limit :limit
