-- By which a store is known.
select current_database(), id::text from onward.identity
