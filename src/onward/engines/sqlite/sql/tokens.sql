-- Read tokens, the newest first.
-- :id  null: all
select id, name, digest, role, permissions, queues, orgs, created_at, created_by, expires_at, last_used_at, revoked_at
  from onward_token
 where :id is null or id = :id
 order by created_at desc, id desc
