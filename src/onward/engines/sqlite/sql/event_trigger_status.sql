-- Record what a job's move means. One that comes back to its queue after its lease has run out has stalled.
create trigger onward_event_on_status after update of status on onward_job when new.status <> old.status
begin
  insert into onward_event (at, event, queue, id, type, org_id, attempts)
  select new.updated_at, 'stalled', new.queue, new.id, new.type, new.org_id, new.attempts
   where new.status = 'pending' and old.lease_until <= new.updated_at;
  insert into onward_event (at, event, queue, id, type, org_id, attempts, number, message, traceback)
  select coalesce(new.completed_at, new.updated_at), event, new.queue, new.id, new.type, new.org_id, new.attempts,
         case event when 'retry' then new.next_run_at - new.updated_at end,
         case event when 'active' then new.worker_id when 'completed' then new.result
                   when 'failed' then new.last_error when 'cancelled' then new.last_error end,
         case event when 'failed' then new.errors ->> '$[#-1].traceback' end
    from (select case new.status when 'pending' then 'waiting' when 'running' then 'active' when 'completed' then 'completed'
                                when 'failed' then 'failed' when 'dead_letter' then 'failed' when 'cancelled' then 'cancelled'
                                -- one that was put off by its own handler has its attempt back
                                when 'scheduled' then iif(old.status = 'running' and new.attempts = old.attempts, 'retry', null)
                 end as event)
   where event is not null;
end
