-- The same as enqueue_one, and have it told, if anybody listens: see notify.
-- $11 the channel, $12 what is told
insert into onward.job (id, payload, queue, type, priority, org_id, start_by, max_attempts, backoff, ready_at, created_at,
                        updated_at, trace)
select $1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, $6::text, onward.moment($7::bigint),
       coalesce($8::bigint, 5), $9::text::json, t.now, t.now, t.now, $10::text
  from (select clock_timestamp() as now,
               case when case when pg_try_advisory_lock(hashtextextended($11::text, 1))
                              then not pg_advisory_unlock(hashtextextended($11::text, 1)) else true end
                    then pg_notify($11::text, $12::text) end
          from onward.lane l
         where l.queue = $3::text collate "C" and l.priority = $5::integer and l.closing is null limit 1) t
 where not exists (select from onward.queue q
                    where q.name = $3::text collate "C" and (q.max_attempts is not null or q.backoff is not null))
