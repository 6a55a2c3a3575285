-- Remove tokens that ended long ago with their sessions, and sessions that expired long ago, some at a time; answers how many.
-- $1 now, $2 how long they are kept, $3 at most so many of each
with old as (
  select coalesce($1::timestamptz, clock_timestamp()) - $2::interval as at
), tokens as (
  delete from onward.token
   where id in (select t.id from onward.token t, old where t.revoked_at <= old.at or t.expires_at <= old.at limit $3::integer)
  returning id
), sessions as (
  delete from onward.session
   where digest in (select s.digest from onward.session s, old
                     where s.expires_at <= old.at or s.token_id in (select id from tokens) limit $3::integer)
  returning digest
)
select ((select count(*) from tokens) + (select count(*) from sessions))::integer
