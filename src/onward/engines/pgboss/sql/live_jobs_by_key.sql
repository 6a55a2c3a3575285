-- Which living jobs have these singleton keys.
-- $1 queues, $2 keys
select distinct on (j.name, j.singleton_key) j.name, j.singleton_key, j.id::text
  from unnest($1::text[], $2::text[]) k (name, key)
  join pgboss.job j on j.name = k.name and j.singleton_key = k.key
 where j.name = any ($1::text[]) and j.state <= 'active'
 order by j.name, j.singleton_key, j.created_on, j.id
