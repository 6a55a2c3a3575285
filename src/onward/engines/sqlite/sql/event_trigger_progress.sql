-- Record how far a job says it is.
create trigger onward_event_on_progress after update of progress, progress_message on onward_job
when new.status = 'running' and (new.progress is not old.progress or new.progress_message is not old.progress_message)
begin
  insert into onward_event (at, event, queue, id, type, org_id, attempts, number, message)
  values (new.updated_at, 'progress', new.queue, new.id, new.type, new.org_id, new.attempts, new.progress, new.progress_message);
end
