-- Read a token.
-- $1 id
select id, name, digest, role, permissions, queues, orgs, created_at, created_by, expires_at, last_used_at, revoked_at
  from onward.token
 where id = $1::text
