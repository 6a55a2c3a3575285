-- The queues there are.
select queue_name::text from pgmq.meta order by queue_name collate "C"
