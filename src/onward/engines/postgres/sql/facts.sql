-- What there is to know of the server.
select current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
       onward.micros(clock_timestamp())
