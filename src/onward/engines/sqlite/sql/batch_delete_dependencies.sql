-- Remove the dependencies between the jobs of a batch.
delete from onward_dependency where batch = :name
