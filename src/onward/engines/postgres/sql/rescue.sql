-- Give back what dead workers held; forget the workers.
select rescued, buried, queues from onward.rescue($1::bigint, $2::text, $3::bigint, $4::text, $5::bigint, $6::integer, $7::integer)
