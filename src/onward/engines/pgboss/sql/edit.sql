-- Change a job that waits; what is not given stays. It is kept as long after its new time as it was to be after its old one.
-- $1 queue, $2 id, $3 priority, $4 data, $5 moment, $6 retry limit
update pgboss.job j
   set priority = coalesce($3::integer, j.priority),
       data = coalesce($4::text::jsonb, j.data),
       start_after = coalesce($5::timestamptz, j.start_after),
       keep_until = j.keep_until + (coalesce($5::timestamptz, j.start_after) - j.start_after),
       retry_limit = coalesce($6::integer, j.retry_limit)
 where j.name = $1::text and j.id = $2::uuid and j.state < 'active'
returning j.name
