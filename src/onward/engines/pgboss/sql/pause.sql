-- Pause a queue for Onward's workers, resume it, or change why it is paused.
-- $1 queue, $2 paused (null: as it is), $3 whether a reason is given, $4 the reason, $5 whether it is said by whom, $6 by whom
insert into onward.queue as q (name, paused, pause_reason, paused_by, paused_at)
values ($1::text, coalesce($2::boolean, false), case when $2 then $4::text end, case when $2 then $6::text end,
        case when $2 then pgboss.job_now() end)
on conflict (name) do update
  set paused = coalesce($2, q.paused),
      pause_reason = case when coalesce($2, q.paused) then case when $3::boolean then $4 else q.pause_reason end end,
      paused_by = case when coalesce($2, q.paused) then case when $5::boolean then $6 else q.paused_by end end,
      paused_at = case when coalesce($2, q.paused) then coalesce(q.paused_at, pgboss.job_now()) end
