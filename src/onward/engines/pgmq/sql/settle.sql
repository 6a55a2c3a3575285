-- Record how runs ended; answers the claims that were lost.
-- Completed: $1 queues, $2 read counts, $3 stamps, $4 header patches, $5 lists of ids. Other outcomes: $6 queues, $7 ids,
-- $8 read counts, $9 stamps, $10 actions, $11 delays, $12 header patches, $13 failures. $14 columns, $15 whether what is completed is deleted.
select queue, msg_id, read_ct, stamp
  from onward.complete($1::text::text[], $2::text::integer[], $3::text::bigint[], $4::text::text[], $5::text::text[], $14::text,
                       $15::boolean)
union all
select queue, msg_id, read_ct, stamp
  from onward.settle($6::text::text[], $7::text::bigint[], $8::text::integer[], $9::text::bigint[], $10::text::text[],
                     $11::text::bigint[], $12::text::text[], $13::text::text[], $14::text)
