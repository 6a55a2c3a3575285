-- Forget a batch that has finished.
delete from onward_batch where name = :name and finished_at is not null
