-- Let jobs know that some of those they wait for have ended well enough; who waits for no more is ready.
-- :jobs  JSON array of [seq, how many]; :now
update onward_job
   set pending_dependencies = pending_dependencies - ended, status = iif(pending_dependencies = ended, 'pending', 'blocked'),
       ready_at = iif(pending_dependencies = ended, :now, null), updated_at = max(:now, updated_at + 1)
  from (select value ->> 0 as of_seq, value ->> 1 as ended from json_each(:jobs))
 where seq = of_seq and status = 'blocked'
returning iif(status = 'pending', queue, null)
