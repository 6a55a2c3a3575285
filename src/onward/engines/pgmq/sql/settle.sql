-- Record how runs ended; answers the claims that were lost.
-- Completed: $1 queues, $2 read counts, $3 header patches, $4 lists of ids. Other outcomes: $5 queues, $6 ids, $7 read counts,
-- $8 actions, $9 delays, $10 header patches, $11 failures. $12 columns, $13 whether what is completed is deleted.
select queue, msg_id, read_ct
  from onward.complete($1::text::text[], $2::text::integer[], $3::text::text[], $4::text::text[], $12::text, $13::boolean)
union all
select queue, msg_id, read_ct
  from onward.settle($5::text::text[], $6::text::bigint[], $7::text::integer[], $8::text::text[], $9::text::bigint[],
                     $10::text::text[], $11::text::text[], $12::text)
