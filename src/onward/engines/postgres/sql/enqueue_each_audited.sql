-- The same as enqueue_each, and write the records of it: one statement, so one transaction and one round trip.
-- $19 JSON array of records, as in audit_add
with audited as (
  insert into onward.audit (at, id, actor, role, action, target, filter, count, orgs, request_id, detail)
  select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), r ->> 0, r ->> 1, r ->> 2, r ->> 3, r ->> 4, r ->> 5,
         (r ->> 6)::bigint, (r ->> 7)::text[], r ->> 8, r ->> 9
    from json_array_elements($19::text::json) r
  on conflict (id) do nothing
)
select onward.enqueue_each(
  $1::bigint, $2::text::uuid[], $3::text::json, $4::text::text[], $5::text::text[], $6::text::integer[], $7::text::text[],
  $8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[], $12::text::text[], $13::text::text[],
  $14::text::integer[], $15::text::text[], $16::text::text[], $17::text, $18::text)
