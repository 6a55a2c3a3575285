-- How the record stands, and what can be seen now.
select pg_current_snapshot()::text, onward.to_micros(coalesce(onward.to_timestamp($1::bigint), clock_timestamp())), complete_since::text,
       trimmed_xid::text::bigint, onward.to_micros(greatest(pruned_at, timestamptz 'epoch'))
  from onward.event_log
