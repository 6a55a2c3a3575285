-- Say that nothing more is to come, or to start. By an update, so that the trigger sees a batch that has ended already.
update onward_batch set sealed = max(sealed, :sealed), stopped = max(stopped, :stopped) where name = :name
