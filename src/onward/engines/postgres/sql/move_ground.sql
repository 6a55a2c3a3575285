-- Move the ground up.
select onward.move_ground($1::bigint, $2::bigint, $3::text, $4::bigint)
