-- Which jobs of a batch wait for which.
select depends_on, job from onward_dependency where batch = :batch order by job, position
