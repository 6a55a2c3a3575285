-- Say that the jobs of this store are to be run where it is now.
update onward.identity set home = onward.current_home(), timeline = onward.current_timeline()
