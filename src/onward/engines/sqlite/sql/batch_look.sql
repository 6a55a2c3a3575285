-- See to it that a batch is looked at again.
insert into onward_news (batch) values (:name)
