-- The jobs that one has waited for, by id, in the order in which it named them.
select parent::text from onward.link where child = $1::uuid order by place
