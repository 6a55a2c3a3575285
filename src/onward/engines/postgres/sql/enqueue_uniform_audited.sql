-- The same as enqueue_uniform, and write the records of it: one statement, so one transaction and one round trip.
-- $19 JSON array of records, as in audit_add
with added as materialized (
  select is_plain, has_listener from onward.enqueue_uniform(
    $1::bigint, $2::text::uuid[], $3::text::json, $4::text, $5::text, $6::integer, $7::text, $8::bigint, $9::bigint, $10::bigint,
    $11::bigint, $12::text, $13::text, $14::integer, $15::text, $16::text, $17::text, $18::text)
), audited as (
  insert into onward.audit (at, id, actor, role, action, target, filter, count, orgs, request_id, detail)
  select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), r ->> 0, r ->> 1, r ->> 2, r ->> 3, r ->> 4, r ->> 5,
         (r ->> 6)::bigint, (r ->> 7)::text[], r ->> 8, r ->> 9
    from json_array_elements($19::text::json) r
  on conflict (id) do nothing
)
select is_plain, has_listener from added
