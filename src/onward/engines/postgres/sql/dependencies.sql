-- Which jobs of a batch wait for which.
select job::text, depends_on::text from onward.dependency where batch = $1::text order by job, position
