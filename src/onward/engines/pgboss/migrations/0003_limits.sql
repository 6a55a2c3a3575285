-- Pause, rate and concurrency of queues, kept by Onward's workers; Node's workers do not know of them.
-- include onward.pg.limits schema.sql
-- include onward.pg.limits queues.sql

alter table onward.queue
  add column paused       boolean not null default false,
  add column pause_reason text,
  add column paused_by    text,
  add column paused_at    timestamptz;

-- Lock the limits of a queue until the transaction ends. Another claim that takes from it is not waited for: two claims that waited
-- for each other's queues would never end.
-- -> whether there are any, and whether they are locked now
create function onward.lock_queue_limit(of_queue text, out is_limited boolean, out is_locked boolean)
  language plpgsql as $$
begin
  perform from onward.queue_limit l where l.queue = of_queue for update skip locked;
  is_locked := found;
  is_limited := is_locked or exists (select from onward.queue_limit l where l.queue = of_queue);
end $$;
