-- Change a message that waits; answers whether it did.
-- $1 queue, $2 id, $3 payload or null, $4 time or null, $5 what changes in the job header
select onward.edit($1::text, $2::bigint, $3::text, $4::bigint, $5::text::jsonb)
