-- Remove old records, some at a time; answers how many. 30 days stay, whatever is asked.
-- $1 now, $2 how long they are kept, $3 at most so many
with pruned as (
  delete from onward.audit
   where no in (select no from onward.audit
                 where at < coalesce($1::timestamptz, clock_timestamp()) - greatest($2::interval, interval '30 days')
                 order by at limit $3::integer)
  returning no
)
select count(*)::integer from pruned
