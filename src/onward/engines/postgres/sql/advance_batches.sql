-- Do what the ends of jobs mean for others.
select more, callbacks, ready from onward.advance_batches($1::bigint, $2::text, $3::bigint, $4::text, $5::integer)
