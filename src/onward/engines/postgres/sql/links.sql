-- Which jobs of a batch wait for which.
select parent::text, child::text from onward.link where batch = $1::text order by child, place
