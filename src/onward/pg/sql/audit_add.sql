-- Write records; answers the ids of those that are new. One whose id is there already is not written again.
-- $1 now, $2 JSON array of rows, in the order of the columns
insert into onward.audit (at, id, actor, role, action, target, filter, count, orgs, request_id, detail)
select coalesce($1::timestamptz, clock_timestamp()), r ->> 0, r ->> 1, r ->> 2, r ->> 3, r ->> 4, r ->> 5, (r ->> 6)::bigint,
       (r ->> 7)::text[], r ->> 8, r ->> 9
  from json_array_elements($2::text::json) r
on conflict (id) do nothing
returning id
