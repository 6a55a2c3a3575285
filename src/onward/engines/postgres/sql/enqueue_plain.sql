-- Add jobs without keys. The common fields come once (arrays of one), or once for each job.
select onward.enqueue_plain(
  $1::bigint, $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::bigint[], $9::bigint[],
  $10::bigint[], $11::bigint[], $12::text[], $13::text, $14::text)
