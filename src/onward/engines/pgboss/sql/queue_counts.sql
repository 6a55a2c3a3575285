-- How many jobs of each queue are in which state, and since when the one waits that has waited longest.
-- $1 queues
select j.name, s.status, count(*), min(j.start_after) filter (where s.status = 'pending')
-- from jobs.sql
 where j.name = any ($1::text[])
 group by 1, 2
