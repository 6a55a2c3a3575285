-- Read records; conditions and the order are added behind it. By onward_audit_actor, onward_audit_target or the primary key.
select no, id, at, actor, role, action, target, filter, count, orgs, request_id, detail
  from onward_audit
