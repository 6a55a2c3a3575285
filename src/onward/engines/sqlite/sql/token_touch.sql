-- Note that a token was used, if that was last noted before :before.
update onward_token set last_used_at = :now where id = :id and (last_used_at is null or last_used_at <= :before)
