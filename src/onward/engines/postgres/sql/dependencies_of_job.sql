-- The jobs that one has waited for, by id, in the order in which it named them.
select depends_on::text from onward.dependency where job = $1::uuid order by position
