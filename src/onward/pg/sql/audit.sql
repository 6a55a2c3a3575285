-- Read records; conditions and the order are added behind it. By audit_actor, audit_target or the primary key.
select no, id, at, actor, role, action, target, filter, count, orgs, request_id, detail
  from onward.audit
