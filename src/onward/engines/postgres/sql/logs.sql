-- Read a job's log.
select onward.to_micros(l.at), l.line
  from (select seq from onward.job where id = $1::uuid union all select seq from onward.history where id = $1::uuid) j
  join onward.log l on l.seq = j.seq order by l.no
