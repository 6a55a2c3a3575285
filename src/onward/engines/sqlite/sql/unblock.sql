-- Let jobs know that some of those they wait for have ended well enough; who waits for no more is ready.
-- :children  JSON array of [seq, how many]; :now
update onward_job
   set waits_for = waits_for - ended, state = iif(waits_for = ended, 'pending', 'blocked'),
       ready_at = iif(waits_for = ended, :now, null), updated_at = max(:now, updated_at + 1)
  from (select value ->> 0 as of_seq, value ->> 1 as ended from json_each(:children))
 where seq = of_seq and state = 'blocked'
returning iif(state = 'pending', queue, null)
