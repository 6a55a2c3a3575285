-- Give back what dead workers held; forget the workers. With $8: keep the lanes in order, too.
select rescued, buried, queues,
       case when $8::boolean
            then onward.tend($1::bigint, $2::text, $3::bigint, $4::text, $9::bigint, $10::text::bigint[],
                             $11::text::xid8[], $12::integer) end
  from onward.rescue($1::bigint, $2::text, $3::bigint, $4::text, $5::bigint, $6::integer, $7::integer)
