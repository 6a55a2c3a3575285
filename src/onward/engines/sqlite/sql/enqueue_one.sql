-- Add one job that is ready and has no key, unless its queue is not there or claims do not look at it.
insert into onward_job (id, queue, type, status, priority, org_id, payload, max_attempts, backoff, created_at, ready_at,
                        updated_at, trace)
select :id, name, :type, 'pending', :priority, :org_id, :payload, coalesce(:max_attempts, max_attempts, :default_max_attempts), backoff,
       :now, :now, :now, :trace
  from onward_queue where name = :queue and open = 1
