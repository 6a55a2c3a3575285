-- Forget batches that finished long ago, and their dependencies.
-- $1 now, $2 number and $3 leader_id of the term, $4 limit, $5 how long they are kept
with over as (
  delete from onward.batch b
   where b.name = any (array(
           select o.name from onward.batch o
            where o.finished_at <= (select coalesce(onward.to_timestamp($1::bigint), clock_timestamp()) - onward.to_interval($5::bigint))
            order by o.finished_at limit $4::bigint for update skip locked))
     and (select onward.is_leader(coalesce(onward.to_timestamp($1::bigint), clock_timestamp()), $2::bigint, $3::text))
  returning b.name),
dependencies as (delete from onward.dependency l where l.batch = any (array(select o.name from over o)))
select count(*) from over
