-- End a session.
delete from onward_session where digest = :digest
