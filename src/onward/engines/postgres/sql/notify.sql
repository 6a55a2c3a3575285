-- $1 the channel, $2 what is told
select onward.notify_if_listened($1::text, $2::text)
