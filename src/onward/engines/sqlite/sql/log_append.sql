-- Add a line to a job's log.
insert into onward_log (seq, no, at, line)
values (:seq, (select coalesce(max(no), 0) + 1 from onward_log where seq = :seq), :now, :line)
