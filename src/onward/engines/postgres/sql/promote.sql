-- Make due jobs ready, cancel expired ones.
select promoted, expired, queues, next_in, has_batch_events
  from onward.promote($1::bigint, $2::text, $3::bigint, $4::text, $5::integer)
