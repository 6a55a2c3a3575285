-- Note that a session was used, if that was last noted before :before.
update onward_session set last_seen_at = :now where digest = :digest and last_seen_at <= :before
