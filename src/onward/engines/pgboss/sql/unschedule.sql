-- Have no more jobs sent by the clock; answers the queue if there were to be some.
-- $1 queue, $2 key
delete from pgboss.schedule s
 where s.name = $1::text
   and s.key = $2::text                                                               -- if schedule.key
   and $2::text = ''                                                                  -- unless schedule.key
returning s.name
