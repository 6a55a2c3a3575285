-- Write the record of a change by filter, as its job has it; answers whether it is new. Only where the schema has roles.
-- $1 the job's id, $2 the record's id, $3 how many jobs were changed, $4 now
select onward.record_operation($1::uuid, $2::text, $3::bigint, $4::timestamptz)
