-- Jobs counted. What by, and the condition, are put in: see filters.py.
select of, count(*) from (
  select counted as of
-- from jobs.sql
   where condition) every group by of
