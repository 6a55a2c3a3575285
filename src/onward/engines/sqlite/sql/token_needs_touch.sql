-- Whether a use of the token is to be noted; without a write lock.
select exists (select 1 from onward_token where id = :id and (last_used_at is null or last_used_at <= :before))
