-- Set a schedule's next turn, unless somebody else has, or has changed or paused it.
-- $1 now, $2 name, $3 trigger, $4 due, $5 next_at, $6 last_at
update onward.schedule
   set next_at = onward.to_timestamp($5::bigint), last_at = onward.to_timestamp($6::bigint),
       updated_at = greatest(coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), updated_at + interval '1 microsecond')
 where name = $2::text and next_at = onward.to_timestamp($4::bigint) and trigger = $3::jsonb
returning name
