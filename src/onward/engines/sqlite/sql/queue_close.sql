-- Keep claims from looking at a queue in which there is nothing for them, until something changes or :reopens_at has come.
update onward_queue set open = 0, reopens_at = :reopens_at where name = :name
