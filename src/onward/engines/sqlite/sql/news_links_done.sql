-- :links  JSON array of [child, place]
update onward_link set done = 1
  from (select value ->> 0 as of_child, value ->> 1 as of_place from json_each(:links))
 where child = of_child and place = of_place
