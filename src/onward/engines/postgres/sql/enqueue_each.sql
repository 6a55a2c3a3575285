-- Add jobs without keys, of which each may be different.
select onward.enqueue_each(
  $1::bigint, $2::text::uuid[], $3::text::json, $4::text::text[], $5::text::text[], $6::text::integer[], $7::text::text[],
  $8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[], $12::text::text[], $13::text::text[],
  $14::text::integer[], $15::text::text[], $16::text::text[], $17::text, $18::text)
