delete from onward_link where batch = :name
