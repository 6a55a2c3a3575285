-- Read what is known of a time of which not everything was recorded, between two looks: how jobs ended, from the history, and
-- whatever else was recorded. What the history has is known by the lower half of its transaction's number, or of a part of that
-- transaction: so all count that were open at either look.
-- $1, $2 the looks; $3 nothing ended before; $4, $5, $6 after this entry; $7 words, null: all; $8 limit
with entries as (
  select onward.to_micros(e.at) as at, 0 as source, e.no as number_of, e.event, e.queue, e.id, e.type, e.org_id, e.attempts, e.number, e.message, e.traceback
    from onward.event e
   where e.xid >= pg_snapshot_xmin($1::text::pg_snapshot) and e.xid < pg_snapshot_xmax($2::text::pg_snapshot)
     and not pg_visible_in_snapshot(e.xid, $1::text::pg_snapshot) and pg_visible_in_snapshot(e.xid, $2::text::pg_snapshot)
     and e.event not in ('completed', 'failed', 'cancelled')
  union all
  select onward.to_micros(h.completed_at), 1, h.seq, case h.status when 'dead_letter' then 'failed' else h.status end, h.queue, h.id,
         h.type, h.org_id, h.attempts, null, case h.status when 'completed' then h.result::text else h.last_error end,
         case when h.status in ('failed', 'dead_letter') then h.errors -> -1 ->> 'traceback' end
    from onward.history h
   cross join (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as now,
                      pg_snapshot_xmin($1::text::pg_snapshot)::text::bigint as first,
                      pg_snapshot_xmax($2::text::pg_snapshot)::text::bigint as last offset 0) xid
   where xid.now - ((xid.now - h.xmin::text::bigint) & 4294967295) between xid.first and xid.last
     and h.completed_at >= onward.to_timestamp($3::bigint))
select at, source, number_of, event, queue, id::text, type, org_id, attempts, number, message, traceback from entries
 where (at, source, number_of) > ($4::bigint, $5::integer, $6::bigint) and ($7::text[] is null or event = any ($7::text[]))
 order by at, source, number_of limit $8::bigint
