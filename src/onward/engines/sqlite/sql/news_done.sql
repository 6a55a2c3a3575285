delete from onward_news where no in (select value from json_each(:numbers))
