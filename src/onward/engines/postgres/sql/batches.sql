-- Batches, the newest first.
-- $1 names, or null for all; $2 the seq of the last one seen; $3 limit
select name, queue, sealed, total, completed, failed, cancelled, onward.to_micros(created_at), onward.to_micros(finished_at), seq
  from onward.batch
 where ($1::text[] is null or name = any ($1::text[])) and ($2::bigint is null or seq < $2::bigint)
 order by seq desc limit $3::bigint
