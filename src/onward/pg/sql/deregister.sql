-- Take a worker off the list. Its jobs go back by their own leases.
-- $1 id
delete from onward.worker where id = $1::text
