-- Forget a batch that has finished, and its dependencies.
with gone as (delete from onward.batch where name = $1::text and finished_at is not null returning name),
dependencies as (delete from onward.dependency l using gone g where l.batch = g.name)
select name from gone
