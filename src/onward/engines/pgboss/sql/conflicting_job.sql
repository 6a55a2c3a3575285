-- Because of which job another one was refused: it holds the place that the queue's policy, or a throttle, gives only once.
-- $1 queue, $2 singleton key, $3 singleton seconds, $4 offset
select j.id::text
  from pgboss.job j
 where j.name = $1::text and coalesce(j.singleton_key, '') = coalesce($2::text, '')
   and ((j.policy = 'short' and j.state = 'created')
     or (j.policy = 'stately' and j.state = 'created')
     or (j.policy = 'exclusive' and j.state <= 'active')
     or (j.state <> 'cancelled' and j.singleton_on = 'epoch'::timestamp + interval '1 s' * ($3::float8 * floor(
         (date_part('epoch', pgboss.job_now()) + coalesce($4::float8, 0)) / $3::float8))))
 order by j.created_on limit 1
