-- Record that a new job waits.
create trigger onward_event_on_insert after insert on onward_job when new.status = 'pending'
begin
  insert into onward_event (at, event, queue, id, type, org_id, attempts)
  values (new.updated_at, 'waiting', new.queue, new.id, new.type, new.org_id, new.attempts);
end
