-- Tell whoever listens.
select onward.tell($1::text, $2::text)
