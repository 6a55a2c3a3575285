-- Tell at once of those that had ended before somebody followed them.
insert into onward_news (batch, job)
select distinct :batch, id from onward_job
 where id in (select value ->> 2 from json_each(:links)) and completed_at is not null
