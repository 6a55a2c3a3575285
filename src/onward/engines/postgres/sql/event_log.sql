-- How the record stands, and what can be seen now.
select pg_current_snapshot()::text, onward.micros(coalesce(onward.moment($1::bigint), clock_timestamp())), whole_since::text,
       trimmed::text::bigint, onward.micros(greatest(pruned_at, timestamptz 'epoch'))
  from onward.event_log
