-- What the database says of itself.
select current_setting($$server_version$$), current_setting($$synchronous_commit$$), current_setting($$fsync$$),
       current_setting($$full_page_writes$$), clock_timestamp()
