-- The same as enqueue_one, for a job that says nothing else: most do not, and each value more costs both sides. Its table says the rest.
insert into onward.job (id, payload, queue, type, priority, skip_checks)
values ($1::text::uuid, $2::text::json, $3::text, $4::text, $5::integer, not onward.is_recording())
