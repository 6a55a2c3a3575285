-- Let jobs wait for others; answers those that are not there.
select unknown from onward.add_dependencies($1::text, $2::text::uuid[], $3::text::integer[], $4::text::uuid[])
