-- Extend the visibility timeout of messages that are still ours; answers those that are not, and whether they were taken back.
create function onward.extend(queues text[], ids bigint[], reads integer[], stamps bigint[], leases bigint[], columns text)
  returns table (queue text, msg_id bigint, read_ct integer, stamp bigint, was_cancelled boolean)
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  part   record;
  done   bigint[];
  done_stamps bigint[];
begin
  for part in
    select g.queue, array_agg(g.id order by g.id) as ids, array_agg(g.reads order by g.id) as reads,
           array_agg(g.stamp order by g.id) as stamps, array_agg(g.lease order by g.id) as leases
      from unnest(queues, ids, reads, stamps, leases) g (queue, id, reads, stamp, lease)
     group by g.queue
     order by g.queue
  loop
    if not onward.has_tables(part.queue) then
      return query select part.queue, g.id, g.reads, g.stamp, false from unnest(part.ids, part.reads, part.stamps) g (id, reads, stamp);
      continue;
    end if;
    execute format($f$
      with g as (select * from unnest($1, $2, $3, $5) g (id, reads, lease, stamp)), kept as (
        update pgmq.%1$I q set vt = $4 + onward.to_interval(g.lease) from g
         where q.msg_id = any ($1) and q.msg_id = g.id and q.read_ct = g.reads
           and onward.to_micros(q.%2$I) = g.stamp and onward.settled_reads(q.headers, q.msg_id, q.enqueued_at) < q.read_ct
        returning q.msg_id, g.stamp
      )
      select array_agg(msg_id), array_agg(stamp) from kept $f$, 'q_' || lower(part.queue), onward.stamp_column(columns))
      into done, done_stamps using part.ids, part.reads, part.leases, now_at, part.stamps;
    if coalesce(cardinality(done), 0) < cardinality(part.ids) then
      return query execute format($f$
        select $3, g.id, g.reads, g.stamp, exists (
                 select from pgmq.%1$I a
                  where a.msg_id = g.id and a.read_ct = g.reads and onward.to_micros(a.%2$I) = g.stamp
                    and onward.final_status(a.headers, a.msg_id, a.enqueued_at) = 'cancelled')
          from unnest($1, $2, $5) g (id, reads, stamp)
         where (g.id, g.stamp) not in (select * from unnest($4, $6)) $f$, 'a_' || lower(part.queue), onward.stamp_column(columns))
        using part.ids, part.reads, part.queue, done, part.stamps, done_stamps;
    end if;
  end loop;
end $$;

-- Write progress into the headers of a message that is held.
create function onward.report(queue text, id bigint, reads integer, stamp bigint, patch jsonb, columns text) returns boolean
  language plpgsql as $$
declare
  changed integer;
begin
  if not onward.has_tables(queue) then return false; end if;
  execute format($f$
    update pgmq.%1$I q set headers = onward.patch_job_header(q.headers, q.msg_id, q.enqueued_at, $3, '{}', null, null)
     where q.msg_id = $1 and q.read_ct = $2 and onward.to_micros(q.%2$I) = $4
       and onward.settled_reads(q.headers, q.msg_id, q.enqueued_at) < q.read_ct $f$,
    'q_' || lower(queue), onward.stamp_column(columns))
    using id, reads, patch, stamp;
  get diagnostics changed = row_count;
  return changed > 0;
end $$;
