-- Say that the jobs of this store are to be run where it is now.
select onward.confirm_home()
