-- Add jobs without keys that are ready now: open their lane and tell of them, and then read them. Answers what they get where they do
-- not say it themselves, before they are read. Each is ready as of when it is read, so they stay in order. Sent as one query, so
-- that it is one transaction.
select attempts, policy, skip_checks from onward.open_lane($1::text, $2::integer, $3::bigint, $4::text, $5::text, $6::text);
copy onward.job (id, payload, queue, type, org_id, priority, max_attempts, backoff, skip_checks, batch, trace) from stdin (format binary)
