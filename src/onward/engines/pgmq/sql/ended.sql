-- The archived messages of a queue, with how they ended.
-- In braces: as in live.sql, and how much of the archive is looked at.
select {queue} as queue, m.msg_id, m.enqueued_at, {last_read_at} as last_read_at, m.vt, m.archived_at,
       m.message, onward.note_of(m.headers) as note, {type} as type, onward.note_of(m.headers) ->> 'org_id' as org_id,
       onward.note_of(m.headers) ->> 'error' as error, onward.note_of(m.headers) ->> 'worker' as worker_id,
       null::timestamptz as claimed_at, onward.end_of(m.headers) as state, false as is_suspect, null::integer as crashes
  from pgmq.{table} m {sample}
