-- Batch events that are yet to be processed, the oldest first.
select no, batch, job, stops from onward_batch_event order by no limit :limit
