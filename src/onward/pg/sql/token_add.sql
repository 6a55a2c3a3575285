-- Add a token; answers its id, or nothing if there is one with this id.
-- $1 id, $2 name, $3 digest, $4 role, $5 permissions, $6 queues, $7 orgs, $8 created_at, $9 created_by, $10 expires_at,
-- $11 last_used_at, $12 revoked_at
insert into onward.token (id, name, digest, role, permissions, queues, orgs, created_at, created_by, expires_at, last_used_at, revoked_at)
values ($1::text, $2::text, $3::text, $4::text, $5::text[], $6::text[], $7::text[], $8::timestamptz, $9::text, $10::timestamptz,
        $11::timestamptz, $12::timestamptz)
on conflict (id) do nothing
returning id
