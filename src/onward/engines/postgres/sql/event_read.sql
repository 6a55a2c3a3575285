-- Read events that one look could not see and another can, in the order in which they were written.
-- $1, $2 the looks; $3 after this one of them; $4 words, null: all; $5 limit
select no, onward.to_micros(at), event, queue, id::text, type, org_id, attempts, number, message, traceback from onward.event
 where xid >= pg_snapshot_xmin($1::text::pg_snapshot) and xid < pg_snapshot_xmax($2::text::pg_snapshot) and no > $3::bigint
   and not pg_visible_in_snapshot(xid, $1::text::pg_snapshot) and pg_visible_in_snapshot(xid, $2::text::pg_snapshot)
   and ($4::text[] is null or event = any ($4::text[]))
 order by no limit $5::bigint
