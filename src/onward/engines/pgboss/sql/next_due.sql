-- In how many seconds the next job of these queues is due; null: none is known to be.
-- $1 queues
-- index: job_i14 (name, state, blocked, start_after), before it job_i5 (name, start_after)
select extract(epoch from min(s.start_after) - pgboss.job_now())::float8
  from unnest($1::text[]) w (name) cross join lateral (
    (select j.start_after from pgboss.job j                                           -- if index.by_state
      where j.name = w.name and j.state = 'created' and not j.blocked and j.start_after > pgboss.job_now()  -- if index.by_state
      order by j.start_after limit 1)                                                 -- if index.by_state
    union all                                                                         -- if index.by_state
    (select j.start_after from pgboss.job j                                           -- if index.by_state
      where j.name = w.name and j.state = 'retry' and not j.blocked and j.start_after > pgboss.job_now()  -- if index.by_state
      order by j.start_after limit 1)                                                 -- if index.by_state
    (select j.start_after from pgboss.job j                                           -- unless index.by_state
      where j.name = w.name and j.state < 'active' and j.start_after > pgboss.job_now()  -- unless index.by_state
      order by j.start_after limit 1)                                                 -- unless index.by_state
  ) s
