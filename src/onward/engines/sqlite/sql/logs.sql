-- Read a job's log.
select l.at, l.line from onward_job j join onward_log l on l.seq = j.seq where j.id = :id order by l.no
