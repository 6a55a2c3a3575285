-- Show that a listener exists for the next $1 seconds; answer whether one was shown until now.
select onward.has_listener(), setval('onward.listener_until', (date_part('epoch', clock_timestamp()) + $1::float8)::bigint)
