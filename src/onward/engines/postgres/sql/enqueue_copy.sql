-- Add jobs without keys that are ready now. Each is ready as of when it is read, so they stay in order.
copy onward.job (id, payload, queue, type, priority, org_id, max_attempts, backoff, batch, trace) from stdin
