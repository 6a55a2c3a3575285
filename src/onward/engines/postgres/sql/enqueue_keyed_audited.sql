-- The same as enqueue_keyed, and write the record of it with the number of jobs that are new or changed.
-- $27 JSON array of one record, as in audit_add
with added as materialized (
  select enqueue_status, queue, id from onward.enqueue_keyed(
    $1::bigint, $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::bigint[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::integer[], $15::text[], $16::text[], $17::text, $18::text,
    $19::bigint[], $20::text[], $21::bytea[], $22::text[], $23::bytea[], $24::bytea[], $25::bigint[], $26::bigint[])
), audited as (
  insert into onward.audit (at, id, actor, role, action, target, filter, count, orgs, request_id, detail)
  select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), r ->> 0, r ->> 1, r ->> 2, r ->> 3, r ->> 4, r ->> 5,
         (select count(*) from added where enqueue_status in ('inserted', 'replaced')), (r ->> 7)::text[], r ->> 8, r ->> 9
    from json_array_elements($27::text::json) r
  on conflict (id) do nothing
)
select enqueue_status, queue, id from added
