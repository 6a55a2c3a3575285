-- The archived messages of a queue, with how they ended.
-- In braces: as in live.sql, and how much of the archive is looked at.
select {queue} as queue, m.msg_id, m.enqueued_at, {last_read_at} as last_read_at, m.vt, m.archived_at,
       m.message, onward.job_header(m.headers, m.msg_id, m.enqueued_at) as header, {type} as type, onward.job_header(m.headers, m.msg_id, m.enqueued_at) ->> 'org_id' as org_id,
       onward.job_header(m.headers, m.msg_id, m.enqueued_at) ->> 'error' as error, onward.job_header(m.headers, m.msg_id, m.enqueued_at) ->> 'worker' as worker_id,
       null::timestamptz as claimed_at, onward.final_status(m.headers, m.msg_id, m.enqueued_at) as status, false as is_suspect, null::integer as crashes
  from pgmq.{table} m {sample}
