-- Make a queue by use.
-- :name, :now, and the default retention :completed_us, :cancelled_us
insert into onward_queue (name, keep_completed_us, keep_cancelled_us, created_at)
values (:name, :completed_us, :cancelled_us, :now)
on conflict (name) do nothing
