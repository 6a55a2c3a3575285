-- Note that a session was used, unless that was noted within the last minute: then nothing is written.
-- $1 now, $2 digest
update onward.session s set last_seen_at = c.now
  from coalesce($1::timestamptz, clock_timestamp()) c (now)
 where s.digest = $2::text and s.last_seen_at <= c.now - interval '1 minute'
