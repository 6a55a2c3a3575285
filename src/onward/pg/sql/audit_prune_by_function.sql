-- The same for a role that may not delete records: by a function with the owner's rights, which goes by the database's clock.
-- $1 how long they are kept, $2 at most so many
select onward.prune_audit($1::interval, $2::integer)
