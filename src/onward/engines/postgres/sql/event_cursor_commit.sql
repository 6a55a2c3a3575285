-- Move an event cursor on, if it is held by who does; answers a row if so.
-- $1 name, $2 holder, $3 cursor
update onward.event_cursor set cursor = $3::text where name = $1::text and holder = $2::text returning name
