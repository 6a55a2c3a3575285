-- Remove sessions that expired before :before, and those whose token is gone, some at a time.
delete from onward_session
 where digest in (select digest from onward_session s
                   where s.expires_at <= :before or not exists (select 1 from onward_token t where t.id = s.token_id)
                   limit :limit)
