-- Read all tokens, the newest first.
select id, name, digest, role, permissions, queues, orgs, created_at, created_by, expires_at, last_used_at, revoked_at
  from onward.token
 order by created_at desc, id desc
