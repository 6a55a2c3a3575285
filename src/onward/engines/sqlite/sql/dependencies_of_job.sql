-- The jobs that one has waited for, by id, in the order in which it named them.
select depends_on from onward_dependency where job = :job order by position
