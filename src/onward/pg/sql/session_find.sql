-- Read a session and its token.
-- $1 digest
select s.digest, s.token_id, s.created_at, s.last_seen_at, s.expires_at,
       t.id, t.name, t.digest, t.role, t.permissions, t.queues, t.orgs, t.created_at, t.created_by, t.expires_at,
       t.last_used_at, t.revoked_at
  from onward.session s join onward.token t on t.id = s.token_id
 where s.digest = $1::text
