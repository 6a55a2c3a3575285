-- Read what is known of a time of which not everything was recorded: how jobs ended, from the jobs themselves, and whatever
-- else was recorded.
-- :no, :at  after this event; :on_no, :on_at  up to this one; :seen_at, :seen_of, :seen  after this entry; :event_types; :limit
-- Relies on: onward_job_prune.
select at, source, number_of, event, queue, id, type, org_id, attempts, number, message, traceback
  from (select at, 0 as source, no as number_of, event, queue, id, type, org_id, attempts, number, message, traceback
          from onward_event
         where no > :no and no < :on_no and event not in ('', 'completed', 'failed', 'cancelled')
        union all
        select j.completed_at, 1, j.seq, iif(j.status = 'dead_letter', 'failed', j.status), j.queue, j.id, j.type, j.org_id, j.attempts, null,
               iif(j.status = 'completed', j.result, j.last_error),
               case when j.status in ('failed', 'dead_letter') then j.errors ->> '$[#-1].traceback' end
          from onward_queue q
         cross join (select 'completed' as status union all select 'failed' union all select 'dead_letter'
                     union all select 'cancelled') s
         cross join onward_job j indexed by onward_job_prune
            on j.queue = q.name and j.status = s.status and j.completed_at >= :at and j.completed_at <= :on_at
           and j.completed_at is not null)
 where (at, source, number_of) > (:seen_at, :seen_of, :seen)
   and (:event_types is null or event in (select value from json_each(:event_types)))
 order by at, source, number_of limit :limit
