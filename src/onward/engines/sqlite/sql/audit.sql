-- Read records, the newest first. Conditions that are null hold for all.
select no, id, at, actor, role, action, target, filter, count, orgs, request_id, detail
  from onward_audit
 where (:before_no is null or no < :before_no)
   and (:actor is null or actor = :actor)
   and (:action is null or action = :action)
   and (:target is null or target = :target)
   and (:after is null or at > :after)
   and (:before is null or at < :before)
 order by no desc
 limit :limit
