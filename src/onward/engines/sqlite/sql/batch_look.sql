-- See to it that the rest of a batch is cancelled too.
insert into onward_news (batch, stops) values (:name, 1)
