-- Whether the store is where it was confirmed to be, whether its server still has the same timeline, and whether it has anything to run:
-- live jobs or schedules. The last is looked up only where the store has moved: every election asks.
select h.is_same, i.timeline = coalesce(onward.current_timeline(), i.timeline) is not false,
       case when h.is_same then false
            else exists (select from onward.job) or exists (select from onward.schedule s where not s.paused) end
  from onward.identity i, lateral (select onward.is_same_home(i.home, onward.current_home()) as is_same) h
