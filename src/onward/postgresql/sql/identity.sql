-- By which a connection is known to lead to this store.
select current_database()::text, id::text from onward.identity
