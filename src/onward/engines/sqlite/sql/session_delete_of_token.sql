-- End the sessions of a token.
delete from onward_session where token_id = :id
