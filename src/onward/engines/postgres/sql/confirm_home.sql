-- Record that the jobs of this store are to be run where it is now.
-- $1 only if there are none
select onward.confirm_home($1::boolean)
