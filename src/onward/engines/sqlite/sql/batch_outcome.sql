-- How a batch stands that has not finished, and what is to come of it.
select sealed and completed + failed + cancelled >= total as finishes, completed = total as succeeds, failed > 0 as fails,
       on_success, on_failure, on_finished
  from onward_batch where name = :name and finished_at is null
