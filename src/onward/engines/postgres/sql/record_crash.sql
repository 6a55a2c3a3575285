-- Count a crash of the child process in which a suspect ran alone; answers a row if the job is held.
-- $1 now; $2, $3 the claim; $4 how many there are now
update onward.job j
   set crashes = $4::integer,
       updated_at = greatest(coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), j.updated_at + interval '1 microsecond')
 where j.seq = $2::bigint and j.claim_no = $3::bigint and j.lease_until is not null and j.started_at is not null
returning j.seq
