-- End a session; answers its digest, if there was one.
-- $1 digest
delete from onward.session where digest = $1::text returning digest
