-- Note that events are recorded from here on.
insert into onward_event (at, event) values (:now, '')
