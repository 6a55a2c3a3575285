-- Count jobs in, unless the batch has finished or is to stop.
update onward.batch set total = total + $2::bigint where name = $1::text and finished_at is null and not stopped returning name
