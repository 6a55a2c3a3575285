-- The jobs that one has waited for, by id, in the order in which it named them.
select parent from onward_link where child = :child order by place
