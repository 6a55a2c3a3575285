-- Put a bookmark further on, if it is held by who does.
update onward_bookmark set cursor = :cursor where name = :name and holder = :holder
