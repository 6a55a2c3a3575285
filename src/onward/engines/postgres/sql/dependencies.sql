-- Which jobs of a batch wait for which.
select depends_on::text, job::text from onward.dependency where batch = $1::text order by job, position
