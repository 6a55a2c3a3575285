-- Make a schedule or change it. One that goes on in the same trigger keeps its next turn.
-- $1 now, $2 name, $3 job, $4 trigger, $5 missed, $6 paused, $7 next_at
insert into onward.schedule as s (name, job, trigger, missed, paused, next_at, created_at, updated_at)
select $2::text, $3::json, $4::jsonb, $5::text, $6::boolean, onward.to_timestamp($7::bigint), c.now, c.now
  from coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) c (now)
on conflict (name) do update
   set next_at = case when not excluded.paused and not s.paused and s.trigger = excluded.trigger then s.next_at
                      else excluded.next_at end,
       job = excluded.job, trigger = excluded.trigger, missed = excluded.missed, paused = excluded.paused,
       updated_at = greatest(excluded.updated_at, s.updated_at + interval '1 microsecond')
returning name, job::text, trigger::text, missed, paused, onward.to_micros(next_at), onward.to_micros(last_at)
