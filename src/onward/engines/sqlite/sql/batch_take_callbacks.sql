-- Take out the callbacks whose time has come, and note that a batch has finished.
update onward_batch
   set on_failure = iif(:fails or :finishes, null, on_failure), on_success = iif(:finishes, null, on_success),
       on_finished = iif(:finishes, null, on_finished), finished_at = iif(:finishes, :now, null)
 where name = :name
