-- Give the name of a statement on a queue's tables, which is prepared in this session: to plan it takes as long as to do it. In the
-- text %1$I is the queue's table, %2$I its archive, %3$s the columns of both but headers, as this version of PGMQ has them, and %4$I
-- the one with the stamp.
--
-- A plan is kept whatever becomes of the table, so whoever calls this forbids the plans that only a small table has use for.
-- Of the statements the last that were prepared are kept, each some tens of kilobytes, so that many queues do not fill the memory.
-- Null: the queue was dropped.
create function onward.prepared_statement(verb text, queue text, columns text, statement text) returns text
  language plpgsql as $$
declare
  live           text := 'q_' || lower(queue);
  live_table     regclass := to_regclass(format('pgmq.%I', live));
  statement_name text := format('onward_%s_%s_%s', verb, live_table::oid, hashtext(columns));
  old            text;
begin
  if live_table is null then return null; end if;
  if not exists (select from pg_catalog.pg_prepared_statements p where p.name = statement_name) then
    execute format('prepare %I as ', statement_name) || format(statement, live, 'a_' || lower(queue), columns, onward.stamp_column(columns));
    for old in
      select p.name from pg_catalog.pg_prepared_statements p
       where p.from_sql and starts_with(p.name, 'onward_') order by p.prepare_time desc, p.name <> statement_name offset 64
    loop
      execute format('deallocate %I', old);
    end loop;
  end if;
  return statement_name;
end $$;

-- Whether a queue has its tables. One may be dropped while its messages are held: that must not fail what is written of other queues.
create function onward.has_tables(queue text) returns boolean
  language sql stable
  return to_regclass(format('pgmq.%I', 'q_' || lower(queue))) is not null;

-- The column whose value names one read of a message for ever, as part of a claim's token: when it was last read. Ids and read counts
-- repeat where a queue was dropped and created again, and where the server has lost recent commits. Older versions of PGMQ do not have
-- the column; there, when the message was sent has to do, which names the message.
create function onward.stamp_column(columns text) returns text
  language sql immutable parallel safe
  return case when columns like '%last_read_at%' then 'last_read_at' else 'enqueued_at' end;

-- Record how runs ended: PGMQ's own statements, with the fence as a condition more. A message is ours while its read count and its
-- stamp are those that we were given, and no outcome or loss has been written down for that count. Compared under the row's lock, in
-- the statement that moves it. Answers the claims that were lost.
--
-- queues, ids, reads, stamps name the claims, in the order in which everybody locks; actions says `archive`, `delete` or `requeue`.
-- columns are those of a queue's table but headers, as this version of PGMQ has them.
create function onward.settle(
    queues text[], ids bigint[], reads integer[], stamps bigint[], actions text[], delays bigint[], patches text[], failures text[],
    columns text)
  returns table (queue text, msg_id bigint, read_ct integer, stamp bigint)
  language plpgsql as $$
declare
  now_at timestamptz := clock_timestamp();
  stamp_name text := onward.stamp_column(columns);
  part   record;
  done   bigint[];
  done_stamps bigint[];
  later  bigint[];
  cleared bigint[];
begin
  for part in
    select g.queue, g.action, array_agg(g.id) as ids, array_agg(g.reads) as reads, array_agg(g.stamp) as stamps, array_agg(g.delay) as delays,
           array_agg(g.patch) as patches, array_agg(g.failure) as failures
      from unnest(queues, ids, reads, stamps, actions, delays, patches, failures)
           g (queue, id, reads, stamp, action, delay, patch, failure)
     group by g.queue, g.action
     order by g.queue, g.action
  loop
    done := null; done_stamps := null;
    if not onward.has_tables(part.queue) then
      null;
    elsif part.action = 'archive' then
      execute format($f$
        with g as (
          select * from unnest($1, $2, $3::text[]::jsonb[], $4::text[]::jsonb[], $6) g (g_id, g_reads, g_patch, g_failure, g_stamp)
        ), gone as (
          delete from pgmq.%1$I q using g
           where q.msg_id = any ($1) and q.msg_id = g.g_id and q.read_ct = g.g_reads
             and onward.to_micros(q.%4$I) = g.g_stamp and onward.settled_reads(q.headers, q.msg_id, q.enqueued_at) < q.read_ct
          returning q.*, g.g_patch, g.g_failure, g.g_stamp
        ), kept as (
          insert into pgmq.%2$I (%3$s, headers)
          select %3$s, onward.patch_job_header(headers, msg_id, enqueued_at, g_patch, '{lost}', g_failure, $5) from gone
        )
        select array_agg(msg_id), array_agg(g_stamp) from gone $f$,
        'q_' || lower(part.queue), 'a_' || lower(part.queue), columns, stamp_name)
        into done, done_stamps using part.ids, part.reads, part.patches, part.failures, now_at, part.stamps;
    elsif part.action = 'delete' then
      execute format($f$
        with g as (select * from unnest($1, $2, $3) g (id, reads, stamp)), gone as (
          delete from pgmq.%1$I q using g
           where q.msg_id = any ($1) and q.msg_id = g.id and q.read_ct = g.reads
             and onward.to_micros(q.%2$I) = g.stamp and onward.settled_reads(q.headers, q.msg_id, q.enqueued_at) < q.read_ct
          returning q.msg_id, g.stamp
        )
        select array_agg(msg_id), array_agg(stamp) from gone $f$, 'q_' || lower(part.queue), stamp_name)
        into done, done_stamps using part.ids, part.reads, part.stamps;
    else
      execute format($f$
        with g as (
          select * from unnest($1, $2, $3::text[]::jsonb[], $4::text[]::jsonb[], $5, $8) g (id, reads, patch, failure, delay, stamp)
        ), requeued as (
          update pgmq.%1$I q
             set vt = $6 + coalesce(onward.to_interval(g.delay), interval '0'),
                 headers = onward.patch_job_header(q.headers, q.msg_id, q.enqueued_at, g.patch, case when g.delay is null then '{}'::text[] else '{lost}' end,
                                        g.failure, $6)
            from g
           where q.msg_id = any ($1) and q.msg_id = g.id and q.read_ct = g.reads
             and onward.to_micros(q.%2$I) = g.stamp and onward.settled_reads(q.headers, q.msg_id, q.enqueued_at) < q.read_ct
          returning q.msg_id, q.read_ct, q.vt, g.delay, g.stamp, g.patch ->> 'status' = 'put_back' as is_put_back
        ), waiting as (
          insert into onward.due (queue, msg_id, read_ct, due_at)
          select $7, requeued.msg_id, requeued.read_ct, requeued.vt from requeued where requeued.delay is not null
          on conflict on constraint due_pkey do update set read_ct = excluded.read_ct, due_at = excluded.due_at
        )
        select array_agg(msg_id), array_agg(stamp), array_agg(msg_id) filter (where delay is not null),
               array_agg(msg_id) filter (where delay is not null and not is_put_back) from requeued $f$,
        'q_' || lower(part.queue), stamp_name)
        into done, done_stamps, later, cleared using part.ids, part.reads, part.patches, part.failures, part.delays, now_at, part.queue, part.stamps;
      if done is not null and array_length(done, 1) > coalesce(array_length(later, 1), 0) then
        perform pg_notify('onward_pgmq', part.queue);
      end if;
    end if;
    if done is not null then
      -- A run that came to an end by itself has shown that it was not the cause; one that was only given back has not.
      delete from onward.suspect s
       where s.queue = part.queue and s.msg_id = any (case when part.action = 'requeue' then cleared else done end);
    end if;
    if coalesce(cardinality(done), 0) < cardinality(part.ids) then
      return query select part.queue, g.id, g.reads, g.stamp from unnest(part.ids, part.reads, part.stamps) g (id, reads, stamp)
                    where (g.id, g.stamp) not in (select * from unnest(done, done_stamps));
    end if;
  end loop;
end $$;

-- The same for what most runs end with, and so with the least to do: completed, with no result to be kept. Each line is for the
-- messages of one queue that have the same read count, stamp and the same to be written down: `id_lists` has their ids.
create function onward.complete(
    queues text[], reads integer[], stamps bigint[], patches text[], id_lists text[], columns text, is_delete boolean)
  returns table (queue text, msg_id bigint, read_ct integer, stamp bigint)
  language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
  part record;
  done bigint[];
  name text;
begin
  for part in
    select g.queue, g.reads, g.stamp, g.patch, g.id_list, g.id_list::bigint[] as ids
      from unnest(queues, reads, stamps, patches, id_lists) g (queue, reads, stamp, patch, id_list)
  loop
    if is_delete then
      name := onward.prepared_statement('delete', part.queue, columns, $f$
        with gone as (
          delete from pgmq.%1$I where msg_id = any ($1::bigint[]) and read_ct = $2::integer
             and onward.to_micros(%4$I) = $4::bigint and onward.settled_reads(headers, msg_id, enqueued_at) < $2
          returning msg_id
        )
        select array_agg(msg_id) from gone where $3::jsonb is not null $f$);
    else
      name := onward.prepared_statement('complete', part.queue, columns, $f$
        with gone as (
          delete from pgmq.%1$I where msg_id = any ($1::bigint[]) and read_ct = $2::integer
             and onward.to_micros(%4$I) = $4::bigint and onward.settled_reads(headers, msg_id, enqueued_at) < $2
          returning *
        ), kept as (
          insert into pgmq.%2$I (%3$s, headers)
          select %3$s, onward.patch_job_header(headers, msg_id, enqueued_at, $3::jsonb, '{lost}', null, null) from gone
          returning msg_id
        )
        select array_agg(msg_id) from kept $f$);
    end if;
    done := null;
    if name is not null then
      execute format('execute %I (%L, %s, %L, %s)', name, part.id_list, part.reads, part.patch, part.stamp) into done;
    end if;
    if done is not null then
      delete from onward.suspect s where s.queue = part.queue and s.msg_id = any (done);
    end if;
    if coalesce(cardinality(done), 0) < cardinality(part.ids) then
      return query select part.queue, g.id, part.reads, part.stamp from unnest(part.ids) g (id) where not g.id = any (coalesce(done, '{}'));
    end if;
  end loop;
end $$;
