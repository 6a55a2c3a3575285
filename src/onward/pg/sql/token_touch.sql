-- Note that a token was used, unless that was noted within the last minute: then nothing is written.
-- $1 now, $2 id
update onward.token t set last_used_at = c.now
  from coalesce($1::timestamptz, clock_timestamp()) c (now)
 where t.id = $2::text and (t.last_used_at is null or t.last_used_at <= c.now - interval '1 minute')
