-- Give low marks to lanes that need one; answers where the watermark may be moved to, and what to say the next time.
select * from onward.prepare_watermark($1::bigint, $2::bigint, $3::text, $4::text::bigint[], $5::text::xid8[])
