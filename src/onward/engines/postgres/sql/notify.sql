-- $1 the channel, $2 what is told
select onward.tell($1::text, $2::text)
