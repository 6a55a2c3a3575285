-- The jobs of one claim, a row each: for an answer that cannot be read as a whole.
-- $1 now, $2 claim_no
-- Relies on: lease_batch, which names every held job; the fence is in no index.
select j.seq, j.claim_no, j.id::text, j.type, j.priority,
       date_part('epoch', coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) - j.ready_at), j.attempts, j.max_attempts,
       j.crashes, j.org_id, j.backoff::text, j.trace, j.payload::text, j.queue, j.started_at is not null, j.suspect,
       date_part('epoch', q.credit)
  from onward.job j
  left join onward.queue q on q.name = j.queue
 where j.seq = any (array(
         select distinct unnest(g.seqs) from onward.lease_batch g
          where g.until > (select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()))))
   and j.claim_no = $2::bigint and j.lease_until is not null
 order by j.priority desc, j.ready_at, j.seq
