-- Add a token; nothing happens if there is one with this id.
insert into onward_token (id, name, digest, role, permissions, queues, orgs, created_at, created_by, expires_at, last_used_at, revoked_at)
values (:id, :name, :digest, :role, :permissions, :queues, :orgs, :created_at, :created_by, :expires_at, :last_used_at, :revoked_at)
on conflict (id) do nothing
