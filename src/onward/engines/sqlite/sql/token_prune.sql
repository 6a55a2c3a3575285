-- Remove tokens that ended before :before, some at a time.
delete from onward_token
 where id in (select id from onward_token where revoked_at <= :before or expires_at <= :before limit :limit)
