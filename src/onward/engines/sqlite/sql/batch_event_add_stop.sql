-- See to it that the rest of a batch is cancelled too.
insert into onward_batch_event (batch, stops) values (:name, 1)
