-- Whether the store is where it was confirmed to be, whether its server still has the same timeline, and whether it has live jobs.
select onward.is_same_home(i.home, onward.current_home()), i.timeline = coalesce(onward.current_timeline(), i.timeline) is not false,
       exists (select from onward.job)
  from onward.identity i
