-- Write records; one whose id is there already is not written again.
-- :rows  JSON array of rows, in the order of the columns
insert into onward_audit (at, id, actor, role, action, target, filter, count, orgs, request_id, detail)
select :now, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 8, value ->> 9
  from json_each(:rows) where true
on conflict (id) do nothing
