-- Count jobs in, unless the batch has finished or is to stop.
update onward_batch set total = total + :number where name = :name and finished_at is null and not stopped
