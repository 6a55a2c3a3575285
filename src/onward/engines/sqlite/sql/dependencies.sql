-- Which jobs of a batch wait for which.
select job, depends_on from onward_dependency where batch = :batch order by job, position
