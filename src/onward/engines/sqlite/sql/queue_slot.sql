-- Take rate slots: the next job of a limited queue may start at :next_slot_at.
update onward_queue set next_slot_at = :next_slot_at where name = :name
