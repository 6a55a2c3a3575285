-- Give back what dead workers held; forget the workers. With $9: keep the lanes in order, too.
select rescued, buried, queues, checked_until, next_in,
       case when $9::boolean
            then onward.maintain_lanes($1::bigint, $2::text, $3::bigint, $4::text, $10::bigint, $11::text::bigint[],
                             $12::text::xid8[], $13::integer, $14::integer, $15::integer) end
  from onward.rescue($1::bigint, $2::text, $3::bigint, $4::text, $5::bigint, $6::integer, $7::integer, $8::bigint)
