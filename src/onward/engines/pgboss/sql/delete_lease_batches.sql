-- Forget claims that have run out and of which no job is active any more; a leader's work, so it matches the term.
-- $1 number of the term, $2 leader
delete from onward.lease_batch h
 where h.lease_until <= pgboss.job_now()
   and exists (select from onward.leader l
                where l.number = $1::bigint and l.leader_id = $2::text and l.until > pgboss.job_now())
   and not exists (select from unnest(h.ids) x (id) cross join lateral (
         select from pgboss.job j
          where j.name = h.queue and j.id = x.id and j.state::text = 'active' and j.started_on = h.started_at
         offset 0) j)
