-- Which jobs of a batch wait for which.
select parent, child from onward_link where batch = :batch order by child, place
