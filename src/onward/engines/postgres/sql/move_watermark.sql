-- Move the watermark up.
select onward.move_watermark($1::bigint, $2::bigint, $3::text, $4::bigint)
