-- Store how far a held job is, and what it has to say; answers a row if it is held.
-- $1 now; $2, $3 the claim; $4 progress, $5 message; $6 lines, $7 how many are kept
with held as (
  update onward.job j
     set progress = coalesce($4::smallint, j.progress),
         progress_message = case when $4::smallint is null then j.progress_message else $5::text end,
         updated_at = greatest(coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), j.updated_at + interval '1 microsecond')
   where j.seq = $2::bigint and j.claim_no = $3::bigint and j.lease_until is not null and j.started_at is not null
  returning j.seq),
added as (
  insert into onward.log (seq, at, line)
  select h.seq, coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), n.line
    from held h, unnest($6::text[]) with ordinality n (line, no) order by n.no),
trimmed as (
  delete from onward.log l using held h
   where l.seq = h.seq
     and l.no <= (select o.no from onward.log o where o.seq = h.seq order by o.no desc
                   offset greatest($7::bigint - cardinality($6::text[]), 0) limit 1))
select seq from held
