-- Take rate permits: the next job of a limited queue may start at :next_permit_at.
update onward_queue set next_permit_at = :next_permit_at where name = :name
