-- Whether a use of the session is to be noted; without a write lock.
select exists (select 1 from onward_session where digest = :digest and last_seen_at <= :before)
