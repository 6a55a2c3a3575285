-- Count a crash of the child process in which a suspect ran alone, if it is held.
-- $1 queue, $2 id, $3 read count, $4 stamp, $5 how many there are now, $6 columns
with noted as materialized (
  select onward.report($1::text, $2::bigint, $3::integer, $4::bigint, jsonb_build_object('crashes', $5::integer), $6::text) as held),
counted as (
  update onward.suspect s set crashes = $5 from noted n where n.held and s.queue = $1 and s.msg_id = $2)
select held from noted
