-- The payload of one picked job, where it is too long to come with the others.
-- :seq
select payload from onward_job where seq = :seq
