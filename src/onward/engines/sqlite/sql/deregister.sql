-- Take a worker off the list. Its jobs go back by their own leases.
delete from onward_worker where id = :id
