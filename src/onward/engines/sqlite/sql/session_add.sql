-- Add a session of a token that is not revoked; nothing happens without one, or if there is a session with this digest.
insert into onward_session (digest, token_id, created_at, last_seen_at, expires_at)
select :digest, id, :created_at, :last_seen_at, :expires_at
  from onward_token where id = :token_id and revoked_at is null
on conflict (digest) do nothing
