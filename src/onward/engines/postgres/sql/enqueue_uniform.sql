-- Add jobs without keys that differ only in their payloads; answers whether their queue has nothing to say of them, and whether
-- somebody listens.
select is_plain, has_listener from onward.enqueue_uniform(
  $1::bigint, $2::text::uuid[], $3::text::json, $4::text, $5::text, $6::integer, $7::text, $8::bigint, $9::bigint, $10::bigint,
  $11::bigint, $12::text, $13::text, $14::integer, $15::text, $16::text, $17::text, $18::text)
