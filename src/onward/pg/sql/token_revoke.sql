-- Make a token invalid from now on, and end its sessions; answers whether it was valid.
-- $1 now, $2 id
with revoked as (
  update onward.token set revoked_at = coalesce($1::timestamptz, clock_timestamp())
   where id = $2::text and revoked_at is null
  returning coalesce(expires_at > revoked_at, true) as was_valid
), ended as (
  delete from onward.session where token_id = $2::text
)
select was_valid from revoked
