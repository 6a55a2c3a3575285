-- Add a session of a token that is not revoked; answers its digest, or nothing without such a token or if the session exists.
-- $1 digest, $2 token_id, $3 created_at, $4 last_seen_at, $5 expires_at
-- The token's row is locked: a revocation comes before, or finds this session and ends it.
insert into onward.session (digest, token_id, created_at, last_seen_at, expires_at)
select $1::text, t.id, $3::timestamptz, $4::timestamptz, $5::timestamptz
  from (select id from onward.token where id = $2::text and revoked_at is null for share) t
on conflict (digest) do nothing
returning digest
