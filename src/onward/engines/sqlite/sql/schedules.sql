-- All schedules, or those that are due until :until.
select name, job, trigger, missed, paused, next_at, last_at from onward_schedule
 where :until is null or next_at <= :until
 order by case when :until is null then 0 else next_at end, name
 limit :limit
