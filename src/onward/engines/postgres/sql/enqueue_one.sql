-- Add a job without keys that is ready now, where its lane is open and its queue has nothing to say of it; else nothing is done, and
-- it is enqueue_alike's. By far the most jobs come so, and a function would cost as much again. Without `returning`, which would
-- cost a quarter more: how many rows were added is said anyway. Word of it is left for another to tell.
insert into onward.job (id, payload, queue, type, priority, org_id, start_by, max_attempts, backoff, ready_at, created_at,
                        updated_at, trace)
select $1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, $6::text, onward.moment($7::bigint),
       coalesce($8::bigint, 5), $9::text::json, t.now, t.now, t.now, $10::text
  from (select clock_timestamp() as now
          from onward.lane l
         where l.queue = $3::text collate "C" and l.priority = $5::integer and l.closing is null limit 1) t
 where not exists (select from onward.queue q
                    where q.name = $3::text collate "C" and (q.max_attempts is not null or q.backoff is not null))
