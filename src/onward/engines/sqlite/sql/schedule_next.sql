-- When the turn of the next schedule comes that is not due.
select min(next_at) from onward_schedule where next_at > :now
