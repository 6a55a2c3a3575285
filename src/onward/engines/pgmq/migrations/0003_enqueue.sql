-- Put messages in, by PGMQ's own function, and answer their ids in the order of the messages.
-- Unknown queues are answered, with no id, and then nothing is written: an error would spoil the caller's transaction.
create function onward.enqueue(
    queues text[], payloads text[], headers text[], delays bigint[], run_ats bigint[], notification text)
  returns table (number bigint, msg_id bigint, unknown text)
  language plpgsql as $$
declare
  now_at     timestamptz := clock_timestamp();
  is_uniform boolean := cardinality(queues) = 1;
  part       record;
begin
  return query select null::bigint, null::bigint, each.name
                 from (select distinct unnest(queues)) each (name)
                where not exists (select from pgmq.meta m where m.queue_name = each.name);
  if found then
    return;
  end if;
  for part in
    select given.queue, given.at, array_agg(given.number order by given.number) as numbers,
           array_agg(given.payload order by given.number) as bodies, array_agg(given.header order by given.number) as header_list
      from (select each.number, each.payload::jsonb as payload, queues[each.idx] as queue, headers[each.idx]::jsonb as header,
                   greatest(now_at, now_at + onward.to_interval(delays[each.idx]), onward.to_timestamp(run_ats[each.idx])) as at
              from (select e.payload, e.number, case when is_uniform then 1 else e.number end as idx
                      from unnest(payloads) with ordinality e (payload, number)) each) given
     group by given.queue, given.at
     order by min(given.number)
  loop
    return query
      with sent as (
        select s.id, s.idx from pgmq.send_batch(part.queue, part.bodies, part.header_list, part.at) with ordinality s (id, idx)
      ), waiting as (
        insert into onward.due (queue, msg_id, read_ct, due_at)
        select part.queue, sent.id, 0, part.at from sent where part.at > now_at
        on conflict on constraint due_pkey do update set read_ct = excluded.read_ct, due_at = excluded.due_at
      )
      select part.numbers[sent.idx], sent.id, null::text from sent;
  end loop;
  if notification is not null then
    perform pg_notify('onward_pgmq', notification);
  end if;
end $$;
