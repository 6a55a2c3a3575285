-- The messages of a queue, with where they stand and who runs them.
-- In braces: the queue and its table, how the type is told, and the time of the last read, which older versions have not.
select {queue} as queue, m.msg_id, m.enqueued_at, {last_read_at} as last_read_at, m.vt,
       null::timestamptz as archived_at, m.message, onward.job_header(m.headers, m.msg_id, m.enqueued_at) as header, {type} as type,
       onward.job_header(m.headers, m.msg_id, m.enqueued_at) ->> 'org_id' as org_id,
       onward.job_header(m.headers, m.msg_id, m.enqueued_at) ->> 'error' as error, h.worker_id as worker_id, h.claimed_at as claimed_at,
       case when m.vt = 'infinity' then 'blocked'
            when m.read_ct > onward.settled_reads(m.headers, m.msg_id, m.enqueued_at)
            then case when m.vt > clock_timestamp() or h.worker_id is not null then 'running' else 'pending' end
            when m.vt > clock_timestamp() or d.msg_id is not null then 'scheduled'
            else 'pending' end as status,
       coalesce(s.losses >= 2, false) as is_suspect, s.crashes as crashes
  from pgmq.{table} m
  left join onward.due d on d.queue = {queue} and d.msg_id = m.msg_id and d.read_ct = m.read_ct
  left join onward.suspect s on s.queue = {queue} and s.msg_id = m.msg_id
  left join lateral (
    select h.worker_id, h.claimed_at from onward.lease_batch h
     where m.read_ct > 0 and m.read_ct > onward.settled_reads(m.headers, m.msg_id, m.enqueued_at) and h.queue = {queue} and m.msg_id = any (h.msg_ids)
       and h.read_cts[array_position(h.msg_ids, m.msg_id)] = m.read_ct
     order by h.id desc limit 1) h on true
