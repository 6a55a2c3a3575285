-- Read what is known of a time of which not everything was recorded: how jobs ended, from the jobs themselves, and whatever
-- else was recorded.
-- :no, :at  after this event; :on_no, :on_at  up to this one; :seen_at, :seen_of, :seen  after this entry; :words; :limit
-- Relies on: onward_job_prune.
select at, source, number_of, event, queue, id, attempts, number, said, stack
  from (select at, 0 as source, no as number_of, event, queue, id, attempts, number, said, stack
          from onward_event
         where no > :no and no < :on_no and event not in ('', 'completed', 'failed', 'cancelled')
        union all
        select j.completed_at, 1, j.seq, iif(j.state = 'dead_letter', 'failed', j.state), j.queue, j.id, j.attempts, null,
               iif(j.state = 'completed', j.result, j.last_error),
               case when j.state in ('failed', 'dead_letter') then j.errors ->> '$[#-1].traceback' end
          from onward_queue q
         cross join (select 'completed' as state union all select 'failed' union all select 'dead_letter'
                     union all select 'cancelled') s
         cross join onward_job j indexed by onward_job_prune
            on j.queue = q.name and j.state = s.state and j.completed_at >= :at and j.completed_at <= :on_at
           and j.completed_at is not null)
 where (at, source, number_of) > (:seen_at, :seen_of, :seen)
   and (:words is null or event in (select value from json_each(:words)))
 order by at, source, number_of limit :limit
