-- Rate and concurrency of queues, for Onward's workers. A queue without a row has no limit.
create table onward.queue_limit (
  queue       text    collate "C" primary key,
  rate_count  bigint,
  rate_period bigint,                       -- microseconds
  rate_burst  bigint,
  concurrency integer,
  check (num_nulls(rate_count, rate_period, rate_burst) in (0, 3))
);

-- Change the limits of a queue. Its next permit stays: to set the same rate again gives no extra start.
create function onward.set_queue_limit(
    of_queue text, has_rate boolean, count bigint, period bigint, burst bigint, has_concurrency boolean, at_once integer) returns void
  language plpgsql as $$
begin
  insert into onward.queue_limit (queue) values (of_queue) on conflict do nothing;
  update onward.queue_limit l
     set rate_count = case when has_rate then count else l.rate_count end,
         rate_period = case when has_rate then period else l.rate_period end,
         rate_burst = case when has_rate then burst else l.rate_burst end,
         concurrency = case when has_concurrency then at_once else l.concurrency end
   where l.queue = of_queue;
  delete from onward.queue_limit l where l.queue = of_queue and l.rate_count is null and l.concurrency is null;
end $$;

-- Take up to `wanted` permits of a queue whose row of queue_limit the caller has locked, and of which `held` jobs are held.
-- -> how many were taken; if none for the rate, microseconds until the next; microseconds within which to start a job; for
--    give_up_permits
create function onward.take_queue_permits(
    of_queue text, wanted integer, held bigint, now_at bigint default null,
    out permitted integer, out retry_after bigint, out start_within bigint, out token jsonb)
  language plpgsql as $$
declare
  settings onward.queue_limit;
begin
  permitted := wanted;
  token := '{}';
  select * into settings from onward.queue_limit l where l.queue = of_queue;
  if settings.concurrency is not null then
    permitted := greatest(least(permitted, settings.concurrency - held), 0);
  end if;
  if permitted > 0 and settings.rate_count is not null then
    select t.taken, t.retry_after, t.start_within, t.token into permitted, retry_after, start_within, token
      from onward.take_permits(
        jsonb_build_array(jsonb_build_object('key', of_queue, 'count', settings.rate_count, 'period', settings.rate_period,
                                             'burst', settings.rate_burst)),
        wanted => permitted, now_at => take_queue_permits.now_at) t;
  end if;
end $$;
