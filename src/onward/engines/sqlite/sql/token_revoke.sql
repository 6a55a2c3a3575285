-- Make a token invalid from now on. Returns whether it was valid. Not by `expires_at is null`: in RETURNING, SQLite 3.40 takes
-- that for false.
update onward_token set revoked_at = :now
 where id = :id and revoked_at is null
returning coalesce(expires_at, :now + 1) > :now
