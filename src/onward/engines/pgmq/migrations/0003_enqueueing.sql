-- Put messages in, by PGMQ's own function, and answer their ids in the order of the messages.
-- Unknown queues are answered, with no id, and then nothing is written: an error would spoil the caller's transaction.
create function onward.enqueue(queues text[], payloads text[], headers text[], delays bigint[], moments bigint[], notice text)
  returns table (number bigint, msg_id bigint, unknown text)
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  alike  boolean := cardinality(queues) = 1;
  part   record;
begin
  return query select null::bigint, null::bigint, each.name
                 from (select distinct unnest(queues)) each (name)
                where not exists (select from pgmq.meta m where m.queue_name = each.name);
  if found then
    return;
  end if;
  for part in
    select given.queue, given.at, array_agg(given.number order by given.number) as numbers,
           array_agg(given.payload order by given.number) as bodies, array_agg(given.header order by given.number) as heads
      from (select each.number, each.payload::jsonb as payload, queues[each.place] as queue, headers[each.place]::jsonb as header,
                   greatest(now_at, now_at + onward.span(delays[each.place]), onward.moment(moments[each.place])) as at
              from (select e.payload, e.number, case when alike then 1 else e.number end as place
                      from unnest(payloads) with ordinality e (payload, number)) each) given
     group by given.queue, given.at
     order by min(given.number)
  loop
    return query
      with sent as (
        select s.id, s.place from pgmq.send_batch(part.queue, part.bodies, part.heads, part.at) with ordinality s (id, place)
      ), waiting as (
        insert into onward.due (queue, msg_id, read_ct, due_at)
        select part.queue, sent.id, 0, part.at from sent where part.at > now_at
        on conflict on constraint due_pkey do update set read_ct = excluded.read_ct, due_at = excluded.due_at
      )
      select part.numbers[sent.place], sent.id, null::text from sent;
  end loop;
  if notice is not null then
    perform pg_notify('onward_pgmq', notice);
  end if;
end $$;
