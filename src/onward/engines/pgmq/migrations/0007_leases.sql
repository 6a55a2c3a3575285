-- Extend the visibility timeout of messages that are still ours; answers those that are not, and whether they were taken back.
create function onward.extend(queues text[], ids bigint[], reads integer[], leases bigint[])
  returns table (queue text, msg_id bigint, read_ct integer, was_cancelled boolean)
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  part   record;
  done   bigint[];
begin
  for part in
    select g.queue, array_agg(g.id order by g.id) as ids, array_agg(g.reads order by g.id) as reads,
           array_agg(g.lease order by g.id) as leases
      from unnest(queues, ids, reads, leases) g (queue, id, reads, lease)
     group by g.queue
     order by g.queue
  loop
    execute format($f$
      with g as (select * from unnest($1, $2, $3) g (id, reads, lease)), kept as (
        update pgmq.%I q set vt = $4 + onward.to_interval(g.lease) from g
         where q.msg_id = any ($1) and q.msg_id = g.id and q.read_ct = g.reads and onward.settled_reads(q.headers) < q.read_ct
        returning q.msg_id
      )
      select array_agg(msg_id) from kept $f$, 'q_' || lower(part.queue))
      into done using part.ids, part.reads, part.leases, now_at;
    if coalesce(cardinality(done), 0) < cardinality(part.ids) then
      return query execute format($f$
        select $3, g.id, g.reads, exists (
                 select from pgmq.%I a where a.msg_id = g.id and a.read_ct = g.reads and onward.final_status(a.headers) = 'cancelled')
          from unnest($1, $2) g (id, reads) where not g.id = any ($4) $f$, 'a_' || lower(part.queue))
        using part.ids, part.reads, part.queue, coalesce(done, '{}');
    end if;
  end loop;
end $$;

-- Write progress into the headers of a message that is held.
create function onward.report(queue text, id bigint, reads integer, patch jsonb) returns boolean
  language plpgsql as $$
declare
  changed integer;
begin
  execute format($f$
    update pgmq.%I q set headers = onward.patch_job_header(q.headers, $3, '{}', null, null)
     where q.msg_id = $1 and q.read_ct = $2 and onward.settled_reads(q.headers) < q.read_ct $f$, 'q_' || lower(queue))
    using id, reads, patch;
  get diagnostics changed = row_count;
  return changed > 0;
end $$;
