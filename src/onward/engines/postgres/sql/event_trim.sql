-- Stop recording where nobody listens, and let go of old events; answers whether there are more of them.
select onward.trim_events($1::bigint, $2::integer)
