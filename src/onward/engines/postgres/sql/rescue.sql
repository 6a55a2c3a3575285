-- Give back what dead workers held; forget the workers. With $8: keep the lanes in order, too.
select rescued, queues, checked_until, next_in,
       case when $8::boolean
            then onward.maintain_lanes($1::bigint, $2::text, $3::bigint, $4::text, $9::bigint, $10::text::bigint[],
                             $11::text::xid8[], $12::integer, $13::integer, $14::integer) end
  from onward.rescue($1::bigint, $2::text, $3::bigint, $4::text, $5::bigint, $6::integer, $7::bigint)
