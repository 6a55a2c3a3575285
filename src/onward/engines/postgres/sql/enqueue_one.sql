-- Add a job without keys that is ready now, where its lane was seen open a moment ago, and its queue had nothing to say of it. By far
-- the most jobs come so: to look again would cost a fifth of it, a function as much again, and `returning` a quarter. Word of it is
-- left for another to tell.
insert into onward.job (id, payload, queue, type, priority, org_id, start_by, max_attempts, backoff, trace, skip_checks)
values ($1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, $6::text, onward.to_timestamp($7::bigint),
        coalesce($8::bigint, 5), $9::text::json, $10::text, not onward.is_recording())
