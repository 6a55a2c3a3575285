-- Take out what has been thought through.
delete from onward_news where no in (select value from json_each(:numbers))
