-- How many jobs of each queue are ready, up to a number: so that a claim can give each its share, and lock no more than that.
-- $1 queues, $2 the number
select w.name, (select count(*) from (
         select from pgboss.job_common j
          where j.name = w.name and j.state < 'active' and j.start_after <= pgboss.job_now()
            and not j.blocked                                                         -- if job.blocked
          limit $2::bigint) r)
  from unnest($1::text[]) w (name)
