-- What is still to be thought through.
select no, batch, job, stops from onward_news order by no limit :limit
